#include "ductile/server/host_agent.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/log.h"
#include "ductile/base/machine.h"
#include "ductile/base/paths.h"
#include "ductile/link/addresses.h"
#include "ductile/link/boot_clock.h"
#include "ductile/link/worker_processes.h"
#include "ductile/net/loop.h"
#include "ductile/net/secret.h"
#include "ductile/process/spawn.h"
#include "ductile/process/worker.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/agent_wire_impl.h"
#include "ductile/server/launcher.h"
#include "ductile/server/node_devices.h"
#include "ductile/server/notice_impl.h"
#include "ductile/server/sole_agent_impl.h"
#include "ductile/server/zygotes.h"

namespace ductile::server {
namespace {

using nlohmann::json;

constexpr int kBeatsOfALook = 5;           // at the devices
constexpr int kBeatsUnasked = 2;           // from a signal to the end where there is no hello
constexpr std::chrono::seconds kAgain{1};  // of a notice that could not be written
// Of a controller that reads nothing. More than the longest message, which it may yet take.
constexpr size_t kMostUnsent = size_t{128} << 20;

class HostAgent {
 public:
  // SIGTERM waits until it is known whether it is a notice, so that none is lost.
  HostAgent(int in, int out) : in_(in), out_(out) {
    const sigset_t mask = term();
    ::pthread_sigmask(SIG_BLOCK, &mask, &mask_before_);
  }
  ~HostAgent() { ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr); }

  int run() {
    for (const int fd : {in_, out_}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    in_watch_ = loop_.watch(in_, net::Interest::read, [this](net::Ready) { hear(); });
    out_watch_ = loop_.watch(out_, net::Interest::none, [this](net::Ready) { flush(); });
    const net::Loop::Timer beat = loop_.every(kAgentBeat, [this] {
      end_if_unasked();
      look_at_all();
      look_at_devices();
      if ((!wire_.sealed() || wire_.ready()) && !wire_.has_unsent()) say({{"beat", true}});
    });
    say({{"beat", true}});
    if (!broken_) loop_.run();
    // A machine that is taken back ends its connections in the same moment.
    if (signals_ && !beside_) hear_signals();
    return 0;
  }

 private:
  struct Job {
    std::unique_ptr<Launcher> launcher;
    bool python = false;
    bool ready = false;  // the launcher has something to tell
    bool closing = false;
    std::set<control::WorkerId> own;  // running
  };

  void hear() {
    try {
      const bool open = wire_.read(in_, [&](std::string_view text) { handle(text); });
      flush();
      if (open) return;
    } catch (const Error& error) {
      log_line(fmt::format("host-agent: the connection to the controller broke: {}", error.what()));
    }
    loop_.stop();
  }

  void handle(std::string_view text) {
    const json request = parse_json(text);
    if (!request.is_object() || request.size() != 1)
      return say({{"error", fmt::format("not a request: {}", text.substr(0, 80))}});
    const auto only = request.begin();
    const std::string what = only.key();
    const json& value = only.value();
    try {
      if (what == "hello" && !wire_.sealed()) return hello(value);
      if (!wire_.ready()) fail(ErrorCode::invalid_argument, "'{}' before 'hello'", what);
      if (what == "begin") return begin(value);
      if (!place_) fail(ErrorCode::invalid_argument, "'{}' before 'begin'", what);
      if (what == "census") return census();
      if (what == "stop") return hear_of_stop(value.value("late", 0.0));
      const std::string run = value.at("run");
      if (what == "open") open(run, value);
      if (what == "end") end(run, value.at("worker"));
      const auto found = jobs_.find(run);
      if (found == jobs_.end()) return;
      Job& job = found->second;
      if (what == "start") start(run, job, value);
      if (what == "kill") job.launcher->kill(value.at("worker").get<control::WorkerId>());
      if (what == "ask") job.launcher->ask_to_end(value.at("worker").get<control::WorkerId>());
      if (what == "adopt")
        adopt(run, job, value.at("workers").get<std::vector<control::WorkerId>>());
      if (what == "close") close(run, job);
    } catch (const std::exception& e) {
      say({{"error", e.what()}});
    }
  }

  void hello(const json& value) {
    // Before anything that another protocol may do in another way.
    if (const int64_t theirs = agent_protocol_of(value); theirs != kAgentProtocol)
      fail(
          ErrorCode::conflict,
          "the controller speaks protocol {} of agents, and the agent ({}) speaks {}: use the same "
          "version of Ductile on all hosts",
          theirs, fs::read_symlink("/proc/self/exe").string(), kAgentProtocol);
    const fs::path folder = value.at("folder").get<std::string>();
    const std::string host = value.at("host");
    constexpr const char* kShared =
        "the folder of what runs on several hosts must lie on a file system that all of them "
        "share, under the same path";
    if (::access((folder / "secret").c_str(), R_OK) != 0) {
      const int error = errno;
      if (error == ENOENT || error == ENOTDIR)
        fail(ErrorCode::not_found, "host {} does not see {}; {}", host, folder.string(), kShared);
      fail(ErrorCode::unavailable, "host {} cannot read {}: {}", host, (folder / "secret").string(),
           std::strerror(error));
    }
    if (::access(folder.c_str(), W_OK | X_OK) != 0) {
      const int error = errno;
      fail(ErrorCode::unavailable, "host {} cannot write to {}: {}; {}", host, folder.string(),
           std::strerror(error), kShared);
    }
    const net::Secret secret = net::Secret::from_file(folder / "secret");
    const std::string theirs = value.at("nonce");
    const std::string ours = net::to_hex(net::random_nonce());
    if (theirs.size() != ours.size())
      fail(ErrorCode::invalid_argument, "the nonce of a hello has {} digits, not {}", ours.size(),
           theirs.size());
    folder_ = folder;
    host_ = host;
    place_name_ = agent_proof(secret, "place of " + host);
    say({{"greet",
          {{"protocol", kAgentProtocol},
           {"nonce", ours},
           {"proof", agent_proof(secret, theirs + ours)}}}});
    wire_.seal(net::Seal::Side::server, agent_key(secret, theirs, ours, host));
  }

  // Who says this has the secret, too; so an earlier agent has to go.
  void begin(const json& value) {
    place_ = sole_agent(place_name_);
    program_ = value.at("worker").get<std::string>();
    if (::access(program_.c_str(), X_OK) != 0) program_ = process::find_worker();
    keeper_ = value.at("keeper").get<std::string>();
    if (::access(keeper_.c_str(), X_OK) != 0)
      keeper_ = fs::read_symlink("/proc/self/exe").parent_path() / "ductile-keeper";
    if (const int64_t devices = value.at("devices"); devices > 0)
      devices_ = std::make_unique<NodeDevices>(devices);
    beside_ = value.value("machine", "") == link::PeerAddress::here(host_).place;
    if (notice_ = value.value("notice", 0.0); notice_ > 0)
      heed();
    else
      ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
    json ready = {{"cores", usable_cores().size()}, {"beside", beside_}};
    std::string damage;
    if (const double notice = known_notice(damage); notice > 0) ready["leaving"] = notice;
    say({{"ready", ready}});
    if (!damage.empty()) complain(damage);
    if (devices_) say({{"hardware", json(to_json(devices_->hardware()))}});
    if (devices_) warm();
  }

  // A node of a service, which has jobs to come; a single job has its workers already.
  void warm() {
    zygotes_ = std::make_shared<Zygotes>(loop_);
    LocalLauncherOptions workers;
    workers.program = program_;
    workers.kills_at_end = false;
    workers.cores = devices_->cores();
    workers.gpus = devices_->gpus();
    workers.zygotes = zygotes_;
    warm_up(workers);
  }

  static sigset_t term() {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    return mask;
  }

  // Workers inherit that the signal is blocked (local_launcher.cc), so that the end of a machine,
  // which tells all of its processes, ends none of them too early.
  void heed() {
    if (signals_) return;
    const sigset_t mask = term();
    signals_ = opened(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd");
    signal_watch_ =
        loop_.watch(signals_.get(), net::Interest::read, [this](net::Ready) { hear_signals(); });
  }

  // What ends a controller on this machine may signal its agents, too, as systemd does with a
  // control group. Else a signal is a notice, whatever becomes of the connection: one too many is
  // forgotten after a while, and one that is lost costs the work of all jobs here.
  void hear_signals() {
    signalfd_siginfo info;
    bool told = false;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) told = true;
    if (!told || (beside_ && (controller_stops() || input_has_ended()))) return;
    say({{"leaving", notice_}});
    keep_notice();
    if (beside_ && input_has_ended()) forget_notice();  // it ended meanwhile
  }

  bool input_has_ended() const {
    pollfd end{in_, 0, 0};
    return ::poll(&end, 1, 0) > 0;
  }

  bool controller_stops() const {
    return stop_ && loop_.now() < *stop_ + std::chrono::duration_cast<net::Clock::duration>(
                                               std::chrono::duration<double>(kSecondsOfAStop));
  }

  void hear_of_stop(double late) {
    if (!beside_) return;
    stop_ = loop_.now();
    if (kept_ && notice_now(host_, notice_).came - kept_->came < kSecondsOfAStop + late)
      forget_notice();
  }

  // Nobody has called it, as where a person has started it: then the signal ends it as it ends
  // others, a little later.
  void end_if_unasked() {
    sigset_t waits;
    if (wire_.sealed() || ::sigpending(&waits) != 0 || sigismember(&waits, SIGTERM) != 1) return;
    if (++unasked_ < kBeatsUnasked) return;
    ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
    loop_.stop();  // where whoever started it had blocked it
  }

  void forget_notice() {
    kept_.reset();
    again_.cancel();
    stay_.cancel();
    remove_notice(folder_, host_);
    say({{"leaving", 0.0}});
  }

  // One that is still there so much later is not taken back after all.
  void stay_after(double seconds) {
    const std::chrono::duration<double> wait(seconds);
    stay_ = loop_.after(std::chrono::duration_cast<std::chrono::milliseconds>(wait),
                        [this] { forget_notice(); });
  }

  // A machine is told once, and the next agent has to know it, too, as after a restart of the
  // service.
  void keep_notice() {
    Notice now = notice_now(host_, notice_);
    if (kept_ && !again_.armed() && now.came - kept_->came < 1) return;  // said again and again
    kept_ = std::move(now);
    stay_after(kForget * notice_);
    write_kept();
  }

  // Again and again, as where the disk is full, until it is written or forgotten.
  void write_kept() {
    if (!kept_) return;
    try {
      write_notice(folder_, *kept_);
      again_.cancel();
      if (std::exchange(complained_, false)) complain("its notice could be written after all");
    } catch (const std::exception& error) {
      again_ = loop_.after(kAgain, [this] { write_kept(); });
      if (std::exchange(complained_, true)) return;
      complain(
          fmt::format("its notice is known to its present agent alone, which tries again to "
                      "write it down: {}",
                      error.what()));
    }
  }

  // Seconds, as the notice had them that is not over yet; 0: there is none.
  double known_notice(std::string& damage) {
    const fs::path file = notice_file(folder_, host_);
    try {
      const std::optional<Notice> kept = read_notice(file);
      if (!kept) return 0;
      if (!kept->host.empty() && kept->host != host_) {
        damage = fmt::format("{} is the notice of host {}", file.string(), kept->host);
        return 0;
      }
      // One of an earlier machine of this name is over, whatever its time.
      if (const double left = kept->left(); left > 0) {
        kept_ = kept;
        stay_after(left);
        return kept->seconds;
      }
      fs::remove(file);
    } catch (const std::exception& error) {
      damage = fmt::format("a notice that cannot be read counts as none: {}; {}", error.what(),
                           set_aside(file));
    }
    return 0;
  }

  // In the log of the service, too.
  void complain(const std::string& text) {
    log_line(fmt::format("host-agent: {}", text));
    say({{"complaint", text}});
  }

  void open(const std::string& run, const json& value) {
    if (jobs_.contains(run)) return;
    LocalLauncherOptions options;
    options.keepers = value.at("keepers");
    const bool python = value.value("python", false);
    options.program = options.keepers ? keeper_ : python ? python_worker() : program_;
    options.log = value.at("log").get<std::string>();
    options.threads = value.at("threads");
    options.host = host_;
    options.kills_at_end = false;
    if (devices_) options.cores = devices_->cores();
    if (devices_) options.gpus = devices_->gpus();
    if (!options.keepers && !python) options.zygotes = zygotes_;
    Job& job = jobs_[run];
    job.python = python;
    job.launcher = make_local_launcher(loop_, options, run);
    job.launcher->call_when_ready([this, run] {
      const auto found = jobs_.find(run);
      if (found != jobs_.end() && !std::exchange(found->second.ready, true))
        loop_.post([this, run] { take(run); });
    });
  }

  // Beside the ductile-worker of this host, wherever that was found.
  fs::path python_worker() const { return program_.parent_path() / process::kPythonWorker; }

  // A user's own code runs as that user alone. An agent of another one could read the folder only
  // as root, which a launcher command may have become.
  void check_python() const {
    process::python_worker(program_);
    struct stat info {};
    if (::stat((folder_ / "secret").c_str(), &info) == 0 && info.st_uid != ::geteuid())
      fail(ErrorCode::invalid_argument,
           "the agent runs as user {}, and {} belongs to user {}; the code of a Python job runs "
           "only as the user whose job it is, so the launcher command has to log in as that user",
           ::geteuid(), folder_.string(), info.st_uid);
  }

  // For what a launcher does after some time: a zygote that answers nobody is given up.
  void look_at_all() {
    std::vector<std::string> runs;
    for (const auto& [run, job] : jobs_) runs.push_back(run);
    for (const std::string& run : runs) take(run);
  }

  void look_at_devices() {
    if (!devices_ || ++beats_ % kBeatsOfALook != 0 || !devices_->look()) return;
    say({{"hardware", json(to_json(devices_->hardware()))}});
  }

  void take(const std::string& run) {
    const auto found = jobs_.find(run);
    if (found == jobs_.end()) return;
    Job& job = found->second;
    job.ready = false;
    pass_on(run, job, job.launcher->take());
    end_closed(run, job);
  }

  void start(const std::string& run, Job& job, const json& value) {
    WorkerStart start;
    start.worker = value.at("worker");
    start.arguments = value.at("arguments").get<std::vector<std::string>>();
    for (const json& pair : value.at("environment"))
      start.environment.emplace_back(pair.at(0), pair.at(1));
    start.workers = value.at("workers");
    start.devices = value.at("devices");
    start.gpus = value.value("gpus", int64_t{0});
    try {
      if (job.python) check_python();
      job.launcher->start(start);
      job.own.insert(start.worker);
    } catch (const Error& e) {
      say({{"failed", {{"run", run}, {"worker", start.worker}, {"text", e.what()}}}});
    }
  }

  void adopt(const std::string& run, Job& job, const std::vector<control::WorkerId>& workers) {
    pass_on(run, job, job.launcher->take());
    std::vector<EarlierWorker> sought;
    for (const control::WorkerId worker : workers) sought.push_back({worker});
    job.launcher->adopt(sought);
    json gone = json::array();
    std::vector<LauncherEvent> others;
    for (LauncherEvent& event : job.launcher->take()) {
      const auto* exited = std::get_if<control::WorkerExited>(&event);
      if (exited != nullptr) {
        gone.push_back(exited->worker);
      } else {
        others.push_back(std::move(event));
      }
    }
    pass_on(run, job, others);
    json found = json::array();
    for (const control::WorkerId worker : workers)
      if (std::find(gone.begin(), gone.end(), json(worker)) == gone.end()) {
        found.push_back(worker);
        job.own.insert(worker);
      }
    say({{"adopted", {{"run", run}, {"found", found}, {"gone", gone}}}});
  }

  void close(const std::string& run, Job& job) {
    job.closing = true;
    for (const control::WorkerId worker : job.own) job.launcher->kill(worker);
    end_closed(run, job);
  }

  void end_closed(const std::string& run, const Job& job) {
    if (!job.closing || job.launcher->running() > 0) return;
    say({{"closed", {{"run", run}}}});
    jobs_.erase(run);
  }

  void census() {
    json workers = json::array();
    for (const link::FoundWorker& found : link::workers_below(folder_, host_))
      workers.push_back({{"run", found.run}, {"worker", found.worker}});
    say({{"census", workers}});
  }

  // A child is ended through its launcher, which reaps it.
  void end(const std::string& run, control::WorkerId worker) {
    const auto found = jobs_.find(run);
    if (found != jobs_.end() && found->second.own.contains(worker)) {
      found->second.launcher->kill(worker);
    } else if (link::runs_worker(keeper_, run, worker)) {
      link::end_worker(keeper_, run, worker, SIGQUIT);  // with what came of its command
    } else {
      link::end_worker(program_, run, worker);
      // Of a script the command line alone is known, which a keeper has, too.
      link::end_worker(python_worker(), run, worker);
    }
  }

  void pass_on(const std::string& run, Job& job, const std::vector<LauncherEvent>& events) {
    for (const LauncherEvent& event : events) {
      if (const auto* line = std::get_if<WorkerLine>(&event)) {
        say({{"line", {{"run", run}, {"worker", line->worker}, {"text", line->text}}}});
      } else if (const auto* failed = std::get_if<control::LaunchFailed>(&event)) {
        job.own.erase(failed->worker);
        say({{"failed", {{"run", run}, {"worker", failed->worker}, {"text", failed->text}}}});
      } else if (const auto* exited = std::get_if<control::WorkerExited>(&event)) {
        job.own.erase(exited->worker);
        say({{"exited",
              {{"run", run},
               {"worker", exited->worker},
               {"code", exited->code},
               {"signal", exited->signal}}}});
      }
    }
  }

  void say(const json& value) {
    wire_.say(dump_json(value));
    flush();
  }

  // Never waits: there may be a notice to heed. A controller that reads nothing for long is one
  // whose connection broke.
  void flush() {
    if (broken_) return;
    const bool takes_more = wire_.flush(out_);
    if (takes_more && wire_.unsent() <= kMostUnsent)
      return out_watch_.set(wire_.has_unsent() ? net::Interest::write : net::Interest::none);
    if (takes_more)
      log_line(fmt::format("host-agent: the controller does not read the {} bytes that wait for it",
                           wire_.unsent()));
    broken_ = true;
    out_watch_.end();
    loop_.stop();
  }

  const int in_, out_;
  net::Loop loop_;
  net::Loop::Watch in_watch_, out_watch_;  // the latter while words wait for it
  AgentWire wire_;
  bool broken_ = false;  // nobody reads what it says
  Descriptor place_;     // while it is held, this is the host's agent
  Descriptor signals_;
  net::Loop::Watch signal_watch_;
  sigset_t mask_before_;
  fs::path folder_, program_, keeper_;
  std::string host_, place_name_;
  std::unique_ptr<NodeDevices> devices_;
  double notice_ = 0;                  // seconds that SIGTERM tells of; 0: it ends the agent
  bool beside_ = false;                // the controller is on this machine
  bool complained_ = false;            // that the notice cannot be written
  std::optional<Notice> kept_;         // that is not over
  std::optional<net::Deadline> stop_;  // when the controller began to stop
  net::Loop::Timer again_, stay_;
  int beats_ = 0, unasked_ = 0;
  std::shared_ptr<Zygotes> zygotes_;  // of the built-in worker; null: each is started
  std::map<std::string, Job> jobs_;   // by their runs
};

}  // namespace

int64_t agent_protocol_of(const json& value) {
  if (!value.is_object() || !value.contains("protocol")) return 1;
  const json& protocol = value["protocol"];
  return protocol.is_number_integer() ? protocol.get<int64_t>() : 0;
}

std::string agent_proof(const net::Secret& secret, const std::string& what) {
  return net::to_hex(secret.mac(
      {std::as_bytes(std::span(std::string_view("host-agent"))), std::as_bytes(std::span(what))}));
}

net::Mac agent_key(const net::Secret& secret, const std::string& controller_nonce,
                   const std::string& agent_nonce, const std::string& host) {
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  return secret.mac(
      {bytes("agent connection key"), bytes(controller_nonce), bytes(agent_nonce), bytes(host)});
}

int run_host_agent(int in, int out) {
  std::signal(SIGPIPE, SIG_IGN);
  process::forget_parent();  // whose end its input tells: a signal would look like a notice
  return HostAgent(in, out).run();
}

}  // namespace ductile::server
