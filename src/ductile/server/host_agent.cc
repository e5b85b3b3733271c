#include "ductile/server/host_agent.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/net/loop.h"
#include "ductile/net/secret.h"
#include "ductile/process/line_reader.h"
#include "ductile/process/worker.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/launcher.h"

namespace ductile::server {
namespace {

using nlohmann::json;

class HostAgent {
 public:
  HostAgent(int in, int out) : in_(in), out_(out) {}

  int run() {
    fcntl(in_, F_SETFL, fcntl(in_, F_GETFL) | O_NONBLOCK);
    in_watch_ = loop_.watch(in_, net::Interest::read, [this](net::Ready) { hear(); });
    const net::Loop::Timer beat = loop_.every(kAgentBeat, [this] { say({{"beat", true}}); });
    say({{"beat", true}});
    if (!broken_) loop_.run();
    return 0;
  }

 private:
  void hear() {
    std::vector<std::string> requests;
    const bool open = lines_.read(in_, [&](std::string_view line) { requests.emplace_back(line); });
    for (const std::string& request : requests)
      if (!quitting_) handle(request);
    take();
    if (!open && !quitting_) loop_.stop();
  }

  void take() {
    ready_ = false;
    if (!launcher_) return;
    pass_on(launcher_->take());
    if (quitting_ && launcher_->running() == 0) loop_.stop();
  }

  void handle(const std::string& line) {
    const json request = parse_json(line);
    if (!request.is_object() || request.size() != 1)
      return say({{"error", "not a request: " + line.substr(0, 80)}});
    const std::string what = request.begin().key();
    const json& value = request.begin().value();
    try {
      if (what == "hello") hello(value);
      if (what == "start" && launcher_) start(value);
      if (what == "kill" && launcher_) launcher_->kill(value.get<control::WorkerId>());
      if (what == "adopt" && launcher_) adopt(value.get<std::vector<control::WorkerId>>());
      if (what == "quit") quit();
    } catch (const std::exception& e) {
      say({{"error", e.what()}});
    }
  }

  // Up to five seconds, for those that do not end by a kill.
  void quit() {
    quitting_ = true;
    in_watch_.end();
    if (!launcher_ || launcher_->running() == 0) return loop_.stop();
    for (const control::WorkerId worker : own_) launcher_->kill(worker);
    end_ = loop_.after(std::chrono::seconds(5), [this] { loop_.stop(); });
  }

  void hello(const json& value) {
    const fs::path run = value.at("run").get<std::string>();
    const std::string host = value.at("host");
    constexpr const char* kShared =
        "the run directory of a job on several hosts must lie on a file system that all of them "
        "share, under the same path";
    if (::access((run / "job.toml").c_str(), R_OK) != 0) {
      const int error = errno;
      if (error == ENOENT || error == ENOTDIR)
        fail(ErrorCode::not_found, "host {} does not see {}; {}", host, run.string(), kShared);
      fail(ErrorCode::unavailable, "host {} cannot read {}: {}", host, (run / "job.toml").string(),
           std::strerror(error));
    }
    if (::access(run.c_str(), W_OK | X_OK) != 0) {
      const int error = errno;
      fail(ErrorCode::unavailable, "host {} cannot write to {}: {}; {}", host, run.string(),
           std::strerror(error), kShared);
    }
    const net::Secret secret = net::Secret::from_file(run / "secret");
    options_.program = value.at("worker").get<std::string>();
    if (::access(options_.program.c_str(), X_OK) != 0) options_.program = process::find_worker();
    options_.log = value.at("log").get<std::string>();
    options_.threads = value.at("threads");
    options_.host = host;
    options_.kills_at_end = false;
    launcher_.reset();
    launcher_ = make_local_launcher(loop_, options_, run);
    launcher_->call_when_ready([this] {
      if (!std::exchange(ready_, true)) loop_.post([this] { take(); });
    });
    say({{"ready", {{"proof", agent_proof(secret, value.at("nonce"))}}}});
  }

  void start(const json& value) {
    WorkerStart start;
    start.worker = value.at("worker");
    start.arguments = value.at("arguments").get<std::vector<std::string>>();
    for (const json& pair : value.at("environment"))
      start.environment.emplace_back(pair.at(0), pair.at(1));
    start.workers = value.at("workers");
    try {
      launcher_->start(start);
      own_.insert(start.worker);
    } catch (const Error& e) {
      say({{"failed", {{"worker", start.worker}, {"text", e.what()}}}});
    }
  }

  void adopt(const std::vector<control::WorkerId>& workers) {
    pass_on(launcher_->take());
    launcher_->adopt(workers);
    json gone = json::array();
    std::vector<LauncherEvent> others;
    for (LauncherEvent& event : launcher_->take()) {
      const auto* exited = std::get_if<control::WorkerExited>(&event);
      if (exited != nullptr) {
        gone.push_back(exited->worker);
      } else {
        others.push_back(std::move(event));
      }
    }
    pass_on(std::move(others));
    json found = json::array();
    for (const control::WorkerId worker : workers)
      if (std::find(gone.begin(), gone.end(), json(worker)) == gone.end()) {
        found.push_back(worker);
        own_.insert(worker);
      }
    say({{"adopted", {{"found", found}, {"gone", gone}}}});
  }

  void pass_on(std::vector<LauncherEvent> events) {
    for (const LauncherEvent& event : events) {
      if (const auto* line = std::get_if<WorkerLine>(&event)) {
        say({{"line", {{"worker", line->worker}, {"text", line->text}}}});
      } else if (const auto* exited = std::get_if<control::WorkerExited>(&event)) {
        own_.erase(exited->worker);
        say({{"exited",
              {{"worker", exited->worker}, {"code", exited->code}, {"signal", exited->signal}}}});
      }
    }
  }

  void say(const json& value) {
    const std::string text = dump_json(value) + "\n";
    for (size_t done = 0; done < text.size() && !broken_;) {
      const ssize_t n = ::write(out_, text.data() + done, text.size() - done);
      if (n > 0) {
        done += static_cast<size_t>(n);
      } else if (errno == EAGAIN) {
        pollfd room{out_, POLLOUT, 0};
        ::poll(&room, 1, 1000);
      } else if (errno != EINTR) {
        broken_ = true;
        loop_.stop();
      }
    }
  }

  const int in_, out_;
  net::Loop loop_;
  net::Loop::Watch in_watch_;
  net::Loop::Timer end_;
  process::LineReader lines_;
  bool quitting_ = false;
  bool ready_ = false;   // the launcher has something to tell
  bool broken_ = false;  // nobody reads what it says
  LocalLauncherOptions options_;
  std::unique_ptr<Launcher> launcher_;
  std::set<control::WorkerId> own_;  // of this host's, running
};

}  // namespace

std::string agent_proof(const net::Secret& secret, const std::string& nonce) {
  return net::to_hex(secret.mac(
      {std::as_bytes(std::span(std::string_view("host-agent"))), std::as_bytes(std::span(nonce))}));
}

int run_host_agent(int in, int out) {
  std::signal(SIGPIPE, SIG_IGN);
  return HostAgent(in, out).run();
}

}  // namespace ductile::server
