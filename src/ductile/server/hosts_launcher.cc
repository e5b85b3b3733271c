#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <set>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/net/secret.h"
#include "ductile/process/line_reader.h"
#include "ductile/process/spawn.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/host_agent.h"
#include "ductile/server/hosts.h"
#include "ductile/server/launcher_events_impl.h"

namespace ductile::server {
namespace {

using control::WorkerId;
using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstRetry{500};
constexpr milliseconds kLastRetry{30000};
constexpr milliseconds kQuit{6000};  // for the agents to end at the end
constexpr milliseconds kFinishLook{100};

struct Pipe {
  Descriptor read_end, write_end;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe", errno);
    read_end = Descriptor(ends[0]);
    write_end = Descriptor(ends[1]);
  }
};

// The controller's end of the connection to one host's agent.
class Remote {
 public:
  enum class State { down, greeting, ready };

  Remote(const HostsLauncherOptions& options, const Host& host, fs::path run,
         LauncherEvents& events)
      : options_(options), host_(host), run_(std::move(run)), events_(events) {}
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;
  ~Remote() { hang_up(); }

  const Host& host() const { return host_; }
  State state() const { return state_; }
  const std::string& error() const { return error_; }  // why it is down; empty: it was never up

  // Starts the agent.
  void dial(const net::Secret& secret) {
    try {
      Pipe to, from, talk;
      process::SpawnOptions launch;
      std::vector<std::string> words;
      if (!is_this_machine(host_)) words = launch_words(options_.setup.launcher, host_.name);
      words.push_back(options_.program.string());
      words.emplace_back(kHostAgent);
      launch.program = on_path(words.front());
      launch.arguments.assign(words.begin() + 1, words.end());
      launch.input_fd = to.read_end.get();
      launch.output_fd = from.write_end.get();
      launch.error_fd = talk.write_end.get();
      pid_ = process::spawn(launch);
      to_ = std::move(to.write_end);
      from_ = std::move(from.read_end);
      talk_ = std::move(talk.read_end);
      for (Descriptor* fd : {&to_, &from_, &talk_}) fcntl(fd->get(), F_SETFL, O_NONBLOCK);
      from_watch_ = events_.watch(from_.get());
      talk_watch_ = events_.watch(talk_.get());
    } catch (const Error& e) {
      return fall(e.what());
    }
    state_ = State::greeting;
    dialled_at_ = heard_at_ = Clock::now();
    last_words_.clear();
    unsent_.clear();
    lines_ = talk_lines_ = {};
    const net::Nonce nonce = net::random_nonce();
    nonce_ = net::to_hex(nonce);
    proof_ = agent_proof(secret, nonce_);
    say({{"hello",
          {{"run", run_.string()},
           {"host", host_.name},
           {"nonce", nonce_},
           {"worker", options_.worker.string()},
           {"log", options_.log.string()},
           {"threads", options_.threads}}}});
  }

  void say(const json& value) {
    unsent_ += dump_json(value) + "\n";
    flush();
  }

  // Lets the agent kill its workers and end; take() notices the end.
  void finish() {
    say({{"quit", true}});
    finishing_ = true;
    flush();
  }

  const Descriptor& answers() const { return from_; }
  const Descriptor& talk() const { return talk_; }

  // What the agent said, but for the greeting; notices when it is gone.
  std::vector<json> take() {
    std::vector<json> said;
    if (state_ == State::down) return said;
    flush();
    const bool talks = talk_lines_.read(talk_.get(), [&](std::string_view line) {
      last_words_.emplace_back(line);
      if (last_words_.size() > 5) last_words_.erase(last_words_.begin());
    });
    if (!talks) {
      talk_watch_.end();
      talk_.close();
    }
    std::string trouble;
    const bool open = lines_.read(from_.get(), [&](std::string_view line) {
      heard_at_ = Clock::now();
      json value = parse_json(line);
      if (!value.is_object() || value.empty()) {  // a login script that prints, or the like
        last_words_.emplace_back(line);
      } else if (value.contains("error")) {
        trouble = value["error"].is_string() ? value["error"].get<std::string>() : line;
      } else if (value.contains("ready")) {
        if (value["ready"].value("proof", "") == proof_) {
          state_ = State::ready;
        } else {
          trouble = fmt::format("host {} has another folder at {} than this machine", host_.name,
                                run_.string());
        }
      } else if (!value.contains("beat")) {
        said.push_back(std::move(value));
      }
    });
    const auto now = Clock::now();
    if (!trouble.empty()) {
      fall(trouble);
    } else if (!open) {
      fall(fmt::format("host {}: '{}' ended{}{}", host_.name, command(),
                       last_words_.empty() ? "" : ": ", fmt::join(last_words_, "; ")));
    } else if (state_ == State::greeting && now > dialled_at_ + options_.patience) {
      fall(fmt::format("host {}: '{}' did not answer in {} s", host_.name, command(),
                       options_.patience.count() / 1000));
    } else if (now > heard_at_ + std::max<milliseconds>(kAgentSilence, options_.patience)) {
      fall(fmt::format("host {}: silent for {} s", host_.name,
                       std::chrono::duration_cast<std::chrono::seconds>(now - heard_at_).count()));
    }
    return said;
  }

  bool may_dial() const { return state_ == State::down && Clock::now() >= retry_at_; }

  // Ends the launcher command; the agent sees the end of its input.
  void hang_up() {
    from_watch_.end();
    talk_watch_.end();
    to_.close();
    from_.close();
    talk_.close();
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
    state_ = State::down;
  }

 private:
  static fs::path on_path(const std::string& program) {
    if (program.find('/') != std::string::npos) return program;
    std::string_view path = std::getenv("PATH") ? std::getenv("PATH") : "";
    while (!path.empty()) {
      const size_t colon = path.find(':');
      const fs::path place = fs::path(path.substr(0, colon)) / program;
      if (colon != 0 && ::access(place.c_str(), X_OK) == 0) return place;
      path = colon == std::string_view::npos ? "" : path.substr(colon + 1);
    }
    fail(ErrorCode::not_found, "launcher: there is no program '{}' on PATH", program);
  }

  std::string command() const {
    if (is_this_machine(host_)) return options_.program.string() + " host-agent";
    return fmt::format("{}", fmt::join(launch_words(options_.setup.launcher, host_.name), " "));
  }

  void fall(const std::string& why) {
    hang_up();
    error_ = why;
    const bool was_up = Clock::now() - dialled_at_ > kLastRetry + options_.patience;
    retry_in_ = was_up ? kFirstRetry : std::min(2 * retry_in_, kLastRetry);
    retry_at_ = Clock::now() + retry_in_;
  }

  void flush() {
    while (!unsent_.empty() && to_.get() >= 0) {
      const ssize_t n = ::write(to_.get(), unsent_.data(), unsent_.size());
      if (n <= 0) return;  // full, or broken: the other pipe tells
      unsent_.erase(0, static_cast<size_t>(n));
    }
    if (finishing_) to_.close();
  }

  const HostsLauncherOptions& options_;
  const Host host_;
  const fs::path run_;
  LauncherEvents& events_;
  State state_ = State::down;
  std::string error_;
  pid_t pid_ = -1;
  Descriptor to_, from_, talk_;
  net::Loop::Watch from_watch_, talk_watch_;
  bool finishing_ = false;
  process::LineReader lines_, talk_lines_;
  std::vector<std::string> last_words_;  // of the launcher command
  std::string unsent_, nonce_, proof_;
  Clock::time_point dialled_at_{}, heard_at_{}, retry_at_{};
  milliseconds retry_in_ = kFirstRetry / 2;
};

class HostsLauncher final : public Launcher {
 public:
  HostsLauncher(net::Loop& loop, HostsLauncherOptions options, const fs::path& run)
      : options_(std::move(options)), secret_(secret_of(run)), events_(loop) {
    std::signal(SIGPIPE, SIG_IGN);
    for (const Host& host : options_.setup.hosts)
      remotes_.push_back(std::make_unique<Remote>(options_, host, run, events_));
    meet();
  }

  ~HostsLauncher() override {
    if (!finishing_) finish();
    while (!finished()) {
      await_words(kFinishLook);
      take();
    }
  }

  void finish() override {
    finishing_ = true;
    finish_by_ = Clock::now() + kQuit;
    for (auto& remote : remotes_)
      if (remote->state() != Remote::State::down) remote->finish();
    give_up_ = events_.loop().at(finish_by_, [this] { events_.ready(); });
  }

  bool finished() const override {
    return std::ranges::all_of(remotes_,
                               [](const auto& r) { return r->state() == Remote::State::down; });
  }

  void start(const WorkerStart& start) override {
    Remote& remote = *remotes_[choose(start.workers, start.avoid)];
    const size_t host = index_of(remote);
    WorkerStart here = start;
    here.arguments.insert(here.arguments.end(), {"--host", remote.host().name});
    if (!remote.host().address.empty())
      here.arguments.insert(here.arguments.end(), {"--address", remote.host().address});
    here.workers = std::max(expected(host, start.workers), placed(host) + 1);
    workers_[start.worker] = {host, false};
    remote.say({{"start",
                 {{"worker", here.worker},
                  {"arguments", here.arguments},
                  {"environment", here.environment},
                  {"workers", here.workers}}}});
  }

  void kill(WorkerId id) override {
    const auto found = workers_.find(id);
    if (found == workers_.end()) {
      if (searched_.contains(id)) killed_unfound_.insert(id);
      if (!searched_.contains(id) && !elsewhere_.contains(id)) events_.gone(id);
      return;
    }
    found->second.kill = true;
    Remote& remote = *remotes_[found->second.host];
    if (remote.state() == Remote::State::ready) remote.say({{"kill", id}});
  }

  void adopt(std::span<const WorkerId> ids) override {
    for (const WorkerId id : ids)
      for (size_t h = 0; h < remotes_.size(); ++h) searched_[id].insert(h);
    for (size_t h = 0; h < remotes_.size(); ++h) look(h);
  }

  void call_when_ready(std::function<void()> on_ready) override {
    events_.call_when_ready(std::move(on_ready));
  }

  size_t running() const override {
    return static_cast<size_t>(std::ranges::count_if(workers_, [&](const auto& worker) {
      return remotes_[worker.second.host]->state() == Remote::State::ready;
    }));
  }

  bool reachable() const override {
    return std::ranges::any_of(
        remotes_, [](const auto& remote) { return remote->state() == Remote::State::ready; });
  }

  WorkerPlace place_of(WorkerId id) const override {
    const auto found = workers_.find(id);
    return {found == workers_.end() ? "" : remotes_[found->second.host]->host().name};
  }

  std::vector<LauncherEvent> take() override {
    for (size_t h = 0; h < remotes_.size(); ++h) {
      Remote& remote = *remotes_[h];
      const Remote::State before = remote.state();
      for (const json& said : remote.take()) hear(h, said);
      if (before == Remote::State::greeting && remote.state() == Remote::State::ready) look(h);
      if (finishing_ && Clock::now() >= finish_by_) remote.hang_up();
      if (!finishing_ && remote.may_dial()) remote.dial(secret_);
    }
    return events_.take();
  }

 private:
  struct Worker {
    size_t host = 0;
    bool kill = false;
  };

  // For those who have no loop that turns: the beginning, and an end without finish().
  void await_words(milliseconds wait) const {
    std::vector<pollfd> words;
    for (const auto& remote : remotes_)
      for (const Descriptor* fd : {&remote->answers(), &remote->talk()})
        words.push_back({fd->get(), POLLIN, 0});
    ::poll(words.data(), words.size(), static_cast<int>(wait.count()));
  }

  // The agents of all hosts, or as many as are asked for.
  void meet() {
    for (auto& remote : remotes_) remote->dial(secret_);
    const auto count = [&](Remote::State state) {
      return std::ranges::count_if(remotes_, [&](const auto& r) { return r->state() == state; });
    };
    while (count(Remote::State::greeting) > 0) {
      await_words(milliseconds(100));
      for (size_t h = 0; h < remotes_.size(); ++h)
        for (const json& said : remotes_[h]->take()) hear(h, said);
    }
    const auto up = count(Remote::State::ready);
    if (up > 0 && (!options_.all || static_cast<size_t>(up) == remotes_.size())) return;
    std::vector<std::string> why;
    for (const auto& remote : remotes_)
      if (remote->state() == Remote::State::down) why.push_back(remote->error());
    fail(ErrorCode::unavailable, "{} of {} hosts cannot be used: {}", why.size(), remotes_.size(),
         fmt::join(why, "; "));
  }

  size_t index_of(const Remote& remote) const {
    size_t h = 0;
    while (remotes_[h].get() != &remote) ++h;
    return h;
  }

  int64_t placed(size_t host) const {
    return std::ranges::count_if(workers_, [&](const auto& w) { return w.second.host == host; });
  }

  // Where hosts do not say how many they take they share what is wanted evenly.
  int64_t capacity(size_t host, int64_t wanted) const {
    const int64_t places = remotes_[host]->host().places;
    if (places > 0) return places;
    const auto hosts = static_cast<int64_t>(remotes_.size());
    return (wanted + hosts - 1) / hosts;
  }

  // How many of `wanted` workers this host has when all is well.
  int64_t expected(size_t host, int64_t wanted) const {
    int64_t left = wanted;
    for (size_t h = 0; h < host; ++h) left -= capacity(h, wanted);
    return std::clamp<int64_t>(left, 1, std::max<int64_t>(capacity(host, wanted), 1));
  }

  size_t choose(int64_t wanted, const std::vector<std::string>& avoid) const {
    const auto shunned = [&](size_t h) {
      return std::ranges::find(avoid, remotes_[h]->host().name) != avoid.end();
    };
    for (const bool any : {false, true})
      if (const auto found = find_room(wanted, [&](size_t h) { return any || !shunned(h); }))
        return *found;
    std::vector<std::string> full;
    for (size_t h = 0; h < remotes_.size(); ++h) {
      const Remote& remote = *remotes_[h];
      if (remote.state() != Remote::State::ready) {
        full.push_back(fmt::format("{} cannot be reached ({})", remote.host().name,
                                   remote.error().empty() ? "it is being called" : remote.error()));
      } else {
        full.push_back(fmt::format("{} has {}", remote.host().name, placed(h)));
      }
    }
    fail(ErrorCode::unavailable, "no host has room for a worker: {}", fmt::join(full, ", "));
  }

  // The first host that will do and has room. A host that is gone, or will not do, leaves its share
  // to the others, where nobody said what they can take.
  template <class Will>
  std::optional<size_t> find_room(int64_t wanted, const Will& will_do) const {
    const auto ready = [&](size_t h) {
      return remotes_[h]->state() == Remote::State::ready && will_do(h);
    };
    for (size_t h = 0; h < remotes_.size(); ++h)
      if (ready(h) && placed(h) < capacity(h, wanted)) return h;
    for (size_t h = 0; h < remotes_.size(); ++h)
      if (ready(h) && remotes_[h]->host().places == 0) return h;
    return std::nullopt;
  }

  // Asks a host that has come (again) for the workers that are, or may be, there.
  void look(size_t host) {
    Remote& remote = *remotes_[host];
    if (remote.state() != Remote::State::ready) return;
    json ids = json::array();
    for (const auto& [id, worker] : workers_)
      if (worker.host == host) ids.push_back(id);
    for (const auto& [id, hosts] : searched_)
      if (hosts.contains(host)) ids.push_back(id);
    if (!ids.empty()) remote.say({{"adopt", ids}});
  }

  void hear(size_t host, const json& said) {
    try {
      if (said.contains("line")) {
        const json& line = said["line"];
        events_.add(WorkerLine{line.at("worker"), line.at("text")});
      } else if (said.contains("failed")) {
        const json& failed = said["failed"];
        workers_.erase(failed.at("worker").get<WorkerId>());
        events_.add(control::LaunchFailed{failed.at("worker"),
                                          fmt::format("host {}: {}", remotes_[host]->host().name,
                                                      failed.at("text").get<std::string>())});
      } else if (said.contains("exited")) {
        const json& exited = said["exited"];
        if (workers_.erase(exited.at("worker").get<WorkerId>()) > 0)
          events_.add(
              control::WorkerExited{exited.at("worker"), exited.at("code"), exited.at("signal")});
      } else if (said.contains("adopted")) {
        for (const json& id : said["adopted"].at("found")) found(host, id);
        for (const json& id : said["adopted"].at("gone")) missing(host, id);
      }
    } catch (const json::exception&) {  // not an agent of this version: its words are lost
    }
  }

  void found(size_t host, WorkerId id) {
    searched_.erase(id);
    Worker& worker = workers_[id];
    worker.host = host;
    worker.kill = killed_unfound_.erase(id) > 0 || worker.kill;
    if (worker.kill) remotes_[host]->say({{"kill", id}});
  }

  void missing(size_t host, WorkerId id) {
    if (const auto known = workers_.find(id); known != workers_.end()) {
      if (known->second.host != host) return;
      workers_.erase(known);
      return events_.gone(id);
    }
    const auto searched = searched_.find(id);
    if (searched == searched_.end()) return;
    searched->second.erase(host);
    if (!searched->second.empty()) return;
    searched_.erase(searched);
    killed_unfound_.erase(id);
    if (options_.elsewhere) {
      elsewhere_.insert(id);
    } else {
      events_.gone(id);
    }
  }

  const HostsLauncherOptions options_;
  const net::Secret secret_;
  LauncherEvents events_;
  bool finishing_ = false;
  Clock::time_point finish_by_{};
  net::Loop::Timer give_up_;
  std::vector<std::unique_ptr<Remote>> remotes_;
  std::map<WorkerId, Worker> workers_;
  std::map<WorkerId, std::set<size_t>> searched_;  // hosts that have not said yet
  std::set<WorkerId> killed_unfound_;
  std::set<WorkerId> elsewhere_;  // on no host of ours
};

}  // namespace

std::unique_ptr<Launcher> make_hosts_launcher(net::Loop& loop, HostsLauncherOptions options,
                                              const fs::path& run) {
  return std::make_unique<HostsLauncher>(loop, std::move(options), run);
}

}  // namespace ductile::server
