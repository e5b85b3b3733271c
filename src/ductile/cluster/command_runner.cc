#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/job_runner_impl.h"
#include "ductile/cluster/service_spec_impl.h"
#include "ductile/link/worker_processes.h"
#include "ductile/process/worker.h"
#include "ductile/server/launcher.h"

namespace ductile::cluster {
namespace {

using Kind = AttemptEnd::Kind;

using std::chrono::milliseconds;

constexpr milliseconds kLook{500};        // for what nobody tells
constexpr milliseconds kUnreached{2000};  // for an agent that is just called again
constexpr double kMargin = 0.2;           // of a lease, for a keeper that is slow to kill

std::string text_of(const AttemptEnd& end) {
  if (end.kind == Kind::exited) return fmt::format("It ended with exit code {}", end.code);
  const char* hint = end.signal == SIGKILL ? ", as the kernel does where memory is short" : "";
  return fmt::format("It was killed by signal {} ({}){}", end.signal, ::strsignal(end.signal),
                     hint);
}

// One attempt at a time, each with a keeper of its own (command_impl.h), which outlives the
// service. A launcher starts keepers as it does workers, on this machine or by the agent of a node.
class CommandRunner : public JobRunner {
 public:
  CommandRunner(net::Loop& loop, Engine& engine, RunsFolder runs, fs::path run, CommandSpec command,
                double lease)
      : loop_(loop),
        runs_(std::move(runs)),
        run_(std::move(run)),
        command_(std::move(command)),
        lease_(lease),
        launcher_(engine.keepers(run_)) {
    launcher_->call_when_ready([this] { look_soon(); });  // in each turn, until it is asked
  }

  void start(const std::vector<Holding>& devices, OnEnd on_end) override {
    on_end_ = std::move(on_end);
    devices_ = count(devices);
    if (!devices.empty()) node_ = devices.front().node;
    if (devices.size() > 1)
      fail(ErrorCode::internal, "a command was given devices of {} nodes", devices.size());
    tick_ = loop_.every(kLook, [this] { look(); });
    unread_ = true;
    look();
  }

  // A command moves by ending in good order, and beginning again elsewhere.
  void resize(const std::vector<Holding>& devices, std::function<void(bool)> taken) override {
    const bool stays = devices.size() == 1 && devices.front().node == node_;
    if (!stays && !std::exchange(moving_, true)) preempt();
    taken(stays && !moving_ && count(devices) == devices_);
  }

  void preempt() override {
    stopping_ = true;
    look();
  }

  int64_t wanted() const override { return devices_; }
  std::map<std::string, int64_t> used() const override {
    if (devices_ == 0) return {};
    return {{node_, devices_}};
  }
  // How far it is nobody knows.
  JobProgress progress() const override { return {state_ == State::runs ? attempt_ : -1, 0, 0}; }

 private:
  // Of its keeper: there is none; it may be on `at_`, which is being asked; it runs there.
  enum class State { none, sought, runs };

  static int64_t count(const std::vector<Holding>& devices) {
    int64_t sum = 0;
    for (const Holding& h : devices) sum += h.devices;
    return sum;
  }

  void place(const std::string& node) {
    const server::HostShare share[] = {{node, 1}};
    launcher_->place(share);
  }

  // What an earlier service, or an earlier runner of this one, has left. Where that cannot be read
  // now, this runner stays, and reads it again later: a node's census ends whatever no runner of
  // the service may know.
  void take_over() {
    std::optional<KeeperOrders> orders;
    Attempt last;
    unread_ = false;
    try {
      require_folder_of_runs(runs_, run_);
      orders = read_orders(run_);
      last = look_at_attempt(run_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable) throw;
      unread_ = true;
      if (!std::exchange(complained_, true))
        log_line(fmt::format("{}; trying again", error.what()));
      return;
    }
    if (!orders && lease_ <= 0 && end_strays(run_, SIGQUIT)) {
      unread_ = true;
      return;
    }
    if (orders) last_keeper_ = orders->keeper;
    const bool nothing_runs = !orders || (orders->withdrawn && orders->lease <= 0) ||
                              (last.end && last.number >= orders->attempt);
    if (nothing_runs) return go_on(last);
    keeper_ = orders->withdrawn ? orders->keeper - 1 : orders->keeper;
    keeper_lease_ = orders->lease;
    attempt_ = orders->attempt;
    at_ = orders->node;
    state_ = State::sought;
    if (orders->withdrawn) withdrawn_ = unreached_ = loop_.now();
    place(at_);
    const server::EarlierWorker sought[] = {{keeper_}};
    launcher_->adopt(sought);
  }

  // From where nothing of it runs.
  void go_on(const Attempt& last) {
    if (last.end && is_final(last)) return end_soon(end_of(last));
    if (devices_ == 0 && (last.number == 0 || last.end)) return end_soon({});
    begin(devices_ == 0 ? 0 : last.number + 1);
  }

  // Starts a keeper for this attempt; 0: one that only clears away, where the last one was.
  void begin(int64_t attempt) {
    require_folder_of_runs(runs_, run_);
    std::error_code error;
    for (const fs::path& folder : {run_, run_ / "checkpoints"}) {  // and none that these lie in
      fs::create_directory(folder, error);
      if (error) fail_errno(folder.string(), error.value());
    }
    if (attempt > 0 || at_.empty()) at_ = node_;
    KeeperOrders orders{command_, attempt, ++last_keeper_, at_, false, lease_};
    auto& environment = orders.command.environment;
    const auto add = [&](const char* name, const std::string& value) {
      std::erase_if(environment, [&](const auto& pair) { return pair.first == name; });
      environment.emplace_back(name, value);
    };
    add("DUCTILE_DEVICES", std::to_string(devices_));
    add("DUCTILE_RUN_DIR", run_.string());
    add("DUCTILE_CHECKPOINT_DIR", (run_ / "checkpoints").string());
    add("DUCTILE_RESTART", std::to_string(std::max<int64_t>(0, attempt - 1)));
    write_orders(run_, orders);
    keeper_ = orders.keeper;
    keeper_lease_ = orders.lease;
    attempt_ = attempt;
    unreached_.reset();
    withdrawn_.reset();
    server::WorkerStart start;
    start.worker = keeper_;
    start.arguments = {"--run", run_.string(), "--worker", std::to_string(keeper_)};
    start.devices = std::max<int64_t>(1, devices_);
    start.gpus = attempt == 0 ? 0 : command_.gpus;
    place(at_);
    try {
      launcher_->start(start);
    } catch (const Error& error) {  // its node does not answer now, or has no room for a process
      forget_keeper();
      return end_soon({Phase::queued, fmt::format("It could not begin: {}", error.what()), true});
    }
    state_ = State::runs;
    if (stopping_) press();
  }

  // There is none for this attempt, for certain, so that a later runner need not seek it where it
  // was to be. What was to be cleared away is still there.
  void forget_keeper() try {
    state_ = State::none;
    if (attempt_ > 0) write_orders(run_, {command_, attempt_, ++last_keeper_, at_, true, 0});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable) throw;
  }

  void look() try {
    if (unread_) take_over();
    if (unread_) return;
    for (const server::LauncherEvent& event : launcher_->take()) {
      if (const auto* exited = std::get_if<control::WorkerExited>(&event)) {
        if (exited->worker == keeper_ && state_ != State::none) over();
      } else if (const auto* failed = std::get_if<control::LaunchFailed>(&event)) {
        if (failed->worker != keeper_ || state_ == State::none) continue;
        forget_keeper();
        end_soon({Phase::queued, fmt::format("It could not begin: {}", failed->text), true});
      }
    }
    if (state_ == State::sought) {
      const server::WorkerPlace place = launcher_->place_of(keeper_);
      if (place.process != 0 || !place.host.empty()) state_ = State::runs;
    }
    if (stopping_ || has_to_leave()) press();
    if (end_ && launcher_->finished()) tell_end();
  } catch (const Error&) {
    std::error_code unknown;  // one that cannot be seen now may be there
    const std::string absence = absence_of_runs(runs_, run_);
    if (!absence.empty() && state_ != State::none)
      return;  // its keeper may run: it is looked again
    if (!absence.empty())
      end_soon({Phase::queued, absence + ".", true});
    else if (!fs::exists(run_, unknown) && !unknown)
      end_soon({Phase::failed,
                fmt::format("Its run directory {} was deleted while it ran; submit it again.",
                            run_.string())});
    else
      end_soon(end_by(std::current_exception()));
  }

  // Its orders are withdrawn, or its devices are on another node.
  bool has_to_leave() const { return withdrawn_ || (lease_ > 0 && devices_ > 0 && at_ != node_); }

  // Its keeper has ended, or is not there.
  void over() {
    if (end_) return;
    // What became of it a later runner reads.
    if (const std::string absence = absence_of_runs(runs_, run_); !absence.empty()) {
      state_ = State::none;
      return end_soon({Phase::queued, absence + ".", true});
    }
    const Attempt last = look_at_attempt(run_);
    const bool sought = std::exchange(state_, State::none) == State::sought;
    if (attempt_ == 0) {
      if (sought && last.number > 0 && !last.end) return begin(0);  // it never cleared away
      return end_soon(last.end && is_final(last) ? end_of(last) : lost(last));
    }
    if (last.number < attempt_) {
      if ((sought || has_to_leave()) && !stopping_) return go_on(last);
      forget_keeper();
      return end_soon(not_begun());
    }
    if (!last.end) return begin(0);
    if (has_to_leave() && !stopping_) return go_on(last);
    end_soon(end_of(last));
  }

  // It is to end. Where its node does not answer for a while its orders are withdrawn, which it
  // sees in the shared folder; once it must have seen that, or cannot have seen its orders for as
  // long as its lease, nothing of it runs.
  void press() {
    if (state_ == State::none || end_) return;
    if (launcher_->running() > 0) {
      unreached_.reset();
      return launcher_->ask_to_end(keeper_);
    }
    if (keeper_lease_ <= 0) return;
    const net::Deadline now = loop_.now();
    if (!unreached_) unreached_ = now;
    if (!withdrawn_ && now < *unreached_ + kUnreached) return;
    Attempt last;
    bool ended = false;
    try {
      if (!withdrawn_) withdraw();
      last = look_at_attempt(run_);
      ended = attempt_ > 0 && last.number >= attempt_ && last.end;
      const auto lease = std::chrono::duration<double>(keeper_lease_ * (1 + kMargin));
      if (!ended && now < *withdrawn_ + std::chrono::ceil<net::Clock::duration>(lease)) return;
      // A later runner must neither wait again nor believe that it need not have waited.
      if (!ended) write_orders(run_, {command_, attempt_, last_keeper_, at_, true, 0});
    } catch (const Error& error) {  // the wait goes on, and the next look tries again
      if (error.code() != ErrorCode::unavailable) throw;
      return;
    }
    if (ended) return over();
    launcher_->kill(keeper_);  // should it be there after all when its node comes back
    state_ = State::none;
    if (!stopping_) return go_on(last);
    end_soon({Phase::queued,
              fmt::format("Node {} does not answer; it starts again, elsewhere if need be.", at_)});
  }

  void withdraw() {
    write_orders(run_, {command_, attempt_, last_keeper_ + 1, at_, true, keeper_lease_});
    ++last_keeper_;
    withdrawn_ = loop_.now();
  }

  RunnerEnd stopped() const {
    if (!stopping_ && devices_ > 0)
      return {Phase::queued,
              "It was told to end by neither this service nor its user, as when a machine shuts "
              "down; it starts again.",
              true};
    if (!moving_) return {};
    RunnerEnd end{Phase::queued,
                  fmt::format("It leaves node {}, and starts again elsewhere.", at_)};
    end.moves = true;
    return end;
  }

  RunnerEnd lost(const Attempt& last) const {
    if (stopping_ || devices_ == 0) return stopped();
    const std::string why = last.end && !last.end->text.empty() ? ": " + last.end->text : "";
    return {Phase::queued,
            fmt::format(
                "Its keeper was killed{}; what it had started is ended, and it starts again.", why),
            true};
  }

  RunnerEnd not_begun() const {
    if (stopping_) return stopped();
    const std::string said = process::log_tail(run_ / "worker.log", 1);
    return {Phase::queued,
            fmt::format("It could not begin: {}", said.empty() ? "its keeper ended at once" : said),
            true};
  }

  // Whether it is not to be started again.
  bool is_final(const Attempt& last) const { return has_ended(end_of(last).phase); }

  RunnerEnd end_of(const Attempt& last) const {
    const AttemptEnd& end = *last.end;
    switch (end.kind) {
      case Kind::stopped:
        return stopped();
      case Kind::lost:
        return lost(last);
      case Kind::late:
        return {Phase::failed, fmt::format("It ran for longer than its time limit of {} seconds.",
                                           command_.time_limit)};
      case Kind::refused:
        return {Phase::failed, fmt::format("It could not begin: {}.", end.text)};
      case Kind::exited:
      case Kind::killed:
        break;
    }
    const int64_t code = end.kind == Kind::exited ? end.code : 128 + end.signal;
    if (code == 0) return {Phase::finished, text_of(end) + ".", false, false, code};
    if (last.failures <= command_.retries)
      return {
          Phase::queued,
          fmt::format("{}; retry {} of {} follows.", text_of(end), last.failures, command_.retries),
          true};
    return {
        Phase::failed,
        fmt::format("{}{}; what it said: {}", text_of(end),
                    command_.retries == 0   ? ""
                    : command_.retries == 1 ? ", after a retry"
                                            : fmt::format(", after {} retries", command_.retries),
                    (run_ / "worker.log").string()),
        false, false, code};
  }

  // The launcher is at its end first, so that its destructor waits for nobody.
  void end_soon(RunnerEnd end) {
    if (end_) return;
    end_ = std::move(end);
    launcher_->finish();
    look_soon();
  }
  void look_soon() {
    loop_.arm_once(soon_, milliseconds(0), [this] { look(); });
  }

  // on_end may destroy this object.
  void tell_end() {
    if (!on_end_) return;
    devices_ = 0;
    tick_.cancel();
    const OnEnd on_end = std::move(on_end_);
    const RunnerEnd last = *end_;
    end_timer_ = loop_.after(milliseconds(0), [on_end, last] {
      const OnEnd call = on_end;  // this function goes with the object
      call(last);
    });
  }

  net::Loop& loop_;
  const RunsFolder runs_;
  const fs::path run_;
  const CommandSpec command_;
  const double lease_;  // seconds; 0: of this machine, where a process is gone or is not
  OnEnd on_end_;
  int64_t devices_ = 0;
  std::string node_, at_;  // of its devices, and of the present or last keeper
  State state_ = State::none;
  int64_t attempt_ = 0;  // of the keeper
  uint64_t keeper_ = 0, last_keeper_ = 0;
  double keeper_lease_ = 0;  // which its orders gave it
  bool unread_ = false;      // what there is of it
  bool complained_ = false, stopping_ = false, moving_ = false;
  std::optional<net::Deadline> unreached_, withdrawn_;  // since when
  std::optional<RunnerEnd> end_;
  net::Loop::Timer tick_, soon_, end_timer_;
  const std::unique_ptr<server::Launcher> launcher_;  // ends first: it calls until then
};

}  // namespace

bool end_strays(const fs::path& run, int signal) {
  const std::vector<pid_t> strays = link::workers_of(run);
  for (const pid_t pid : strays) {
    const Descriptor fd(::pidfd_open(pid, 0));
    const std::vector<pid_t> still = link::workers_of(run);  // or another process has the number
    if (!fd || std::ranges::find(still, pid) == still.end()) continue;
    for (const int number : {signal, SIGCONT}) ::pidfd_send_signal(fd.get(), number, nullptr, 0);
  }
  return !strays.empty();
}

std::unique_ptr<JobRunner> make_command_runner(net::Loop& loop, Engine& engine,
                                               const RunsFolder& runs, const fs::path& run,
                                               const CommandSpec& command, double lease) {
  return std::make_unique<CommandRunner>(loop, engine, runs, run, command, lease);
}

}  // namespace ductile::cluster
