#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/job_runner_impl.h"
#include "ductile/process/spawn.h"
#include "ductile/process/worker.h"
#include "ductile/run/lock.h"

namespace ductile::cluster {
namespace {

using Kind = AttemptEnd::Kind;

constexpr int kLastPatience = 10000;  // ms, for a keeper that kills all at once

std::string text_of(const AttemptEnd& end) {
  if (end.kind == Kind::exited) return fmt::format("It ended with exit code {}", end.code);
  const char* hint = end.signal == SIGKILL ? ", as the kernel does where memory is short" : "";
  return fmt::format("It was killed by signal {} ({}){}", end.signal, ::strsignal(end.signal),
                     hint);
}

// One attempt at a time, each with a keeper of its own (command_impl.h), which outlives the
// service.
class CommandRunner : public JobRunner {
 public:
  CommandRunner(net::Loop& loop, fs::path keeper, fs::path run, CommandSpec command)
      : loop_(loop),
        keeper_(std::move(keeper)),
        run_(std::move(run)),
        command_(std::move(command)) {}

  ~CommandRunner() override {
    if (!pid_fd_) return;
    tell_keeper(SIGQUIT);
    pollfd end{pid_fd_.get(), POLLIN, 0};
    ::poll(&end, 1, kLastPatience);
    reap();
  }

  void start(const std::vector<Holding>& devices, OnEnd on_end) override {
    on_end_ = std::move(on_end);
    devices_ = count(devices);
    if (adopt()) return;
    const Attempt last = read_attempt(run_);
    if (last.end && is_final(last)) return end_soon(end_of(last));
    if (devices_ == 0 && (last.number == 0 || last.end)) return end_soon({});
    begin(devices_ == 0 ? 0 : last.number + 1);
  }

  void resize(const std::vector<Holding>& devices, std::function<void(bool)> taken) override {
    taken(count(devices) == devices_);
  }

  void preempt() override {
    stopping_ = true;
    if (pid_fd_) tell_keeper(SIGTERM);
  }

  int64_t wanted() const override { return devices_; }
  std::map<std::string, int64_t> used() const override {
    if (devices_ == 0) return {};
    return {{"", devices_}};  // of the service's own machine
  }
  // How far it is nobody knows.
  JobProgress progress() const override { return {pid_fd_ ? attempt_ : -1, 0, 0}; }

 private:
  // One that was stopped would neither hear it nor ever end.
  void tell_keeper(int signal) const {
    for (const int number : {signal, SIGCONT})
      ::pidfd_send_signal(pid_fd_.get(), number, nullptr, 0);
  }

  static int64_t count(const std::vector<Holding>& devices) {
    int64_t sum = 0;
    for (const Holding& h : devices) sum += h.devices;
    return sum;
  }

  // A keeper that an earlier service started. Its number cannot have gone to another process where
  // that still has the lock's file after it is held by a descriptor.
  bool adopt() {
    const auto holder = run::lock_holder(run_);
    if (!holder) return false;
    Descriptor fd(::pidfd_open(holder->pid, 0));
    const auto still = run::lock_holder(run_);
    if (!fd || !still || still->pid != holder->pid) return false;
    attempt_ = read_attempt(run_).number;
    watch(std::move(fd), holder->pid, false);
    return true;
  }

  // Starts a keeper for this attempt; 0: one that only clears away.
  void begin(int64_t attempt) {
    KeeperOrders orders{command_, attempt};
    auto& environment = orders.command.environment;
    const auto add = [&](const char* name, const std::string& value) {
      std::erase_if(environment, [&](const auto& pair) { return pair.first == name; });
      environment.emplace_back(name, value);
    };
    const bool threads = std::ranges::any_of(
        environment, [](const auto& pair) { return pair.first == "OMP_NUM_THREADS"; });
    if (!threads) add("OMP_NUM_THREADS", std::to_string(devices_));
    add("DUCTILE_DEVICES", std::to_string(devices_));
    add("DUCTILE_RUN_DIR", run_.string());
    add("DUCTILE_CHECKPOINT_DIR", (run_ / "checkpoints").string());
    add("DUCTILE_RESTART", std::to_string(std::max<int64_t>(0, attempt - 1)));
    write_orders(run_, orders);
    process::SpawnOptions launch;
    launch.program = keeper_;
    launch.arguments = {run_.string()};
    launch.log = run_ / "worker.log";
    launch.dies_with_parent = false;
    sigset_t mask;  // what asks it to end waits until it can
    sigemptyset(&mask);
    for (const int signal : {SIGTERM, SIGQUIT, SIGCHLD}) sigaddset(&mask, signal);
    launch.mask = &mask;
    const pid_t pid = process::spawn(launch);
    attempt_ = attempt;
    Descriptor fd(::pidfd_open(pid, 0));
    if (!fd) {
      const int error = errno;
      ::kill(pid, SIGQUIT);
      ::waitpid(pid, nullptr, 0);
      fail_errno("pidfd_open", error);
    }
    watch(std::move(fd), pid, true);
    if (stopping_) preempt();
  }

  void watch(Descriptor fd, pid_t pid, bool child) {
    pid_fd_ = std::move(fd);
    pid_ = pid;
    child_ = child;
    end_watch_ = loop_.watch(pid_fd_.get(), net::Interest::read, [this](net::Ready) { look(); });
  }

  void reap() {
    siginfo_t info{};
    if (child_) ::waitid(P_PIDFD, static_cast<id_t>(pid_fd_.get()), &info, WEXITED | WNOHANG);
  }

  // Its keeper has ended, or the loop called without need.
  void look() {
    pollfd end{pid_fd_.get(), POLLIN, 0};
    if (::poll(&end, 1, 0) <= 0) return;
    reap();
    end_watch_.end();
    pid_fd_.close();
    try {
      const Attempt last = read_attempt(run_);
      if (attempt_ == 0) return end_soon(last.end && is_final(last) ? end_of(last) : lost());
      if (last.number < attempt_) return end_soon(not_begun());
      if (!last.end) return begin(0);
      end_soon(end_of(last));
    } catch (const Error&) {
      end_soon(end_by(std::current_exception()));
    }
  }

  RunnerEnd lost() const {
    if (stopping_ || devices_ == 0) return {};
    return {Phase::queued,
            "Its keeper was killed; what it had started is ended, and it starts again.", true};
  }

  RunnerEnd not_begun() const {
    if (stopping_) return {};
    return {Phase::queued,
            fmt::format("It could not begin: {}", process::log_tail(run_ / "worker.log", 1)), true};
  }

  // Whether it is not to be started again.
  bool is_final(const Attempt& last) const { return has_ended(end_of(last).phase); }

  RunnerEnd end_of(const Attempt& last) const {
    const AttemptEnd& end = *last.end;
    switch (end.kind) {
      case Kind::stopped:
        return {};
      case Kind::lost:
        return lost();
      case Kind::late:
        return {Phase::failed, fmt::format("It ran for longer than its time limit of {} seconds.",
                                           command_.time_limit)};
      case Kind::refused:
        return {Phase::failed, fmt::format("It could not begin: {}.", end.text)};
      case Kind::exited:
      case Kind::killed:
        break;
    }
    if (end.kind == Kind::exited && end.code == 0) return {Phase::finished, text_of(end) + "."};
    if (last.failures <= command_.retries)
      return {
          Phase::queued,
          fmt::format("{}; retry {} of {} follows.", text_of(end), last.failures, command_.retries),
          true};
    return {Phase::failed, fmt::format("{}{}; what it said: {}", text_of(end),
                                       command_.retries == 0 ? ""
                                       : command_.retries == 1
                                           ? ", after a retry"
                                           : fmt::format(", after {} retries", command_.retries),
                                       (run_ / "worker.log").string())};
  }

  // on_end may destroy this object, so nobody is in its functions then.
  void end_soon(RunnerEnd end) {
    end_timer_ = loop_.after(std::chrono::milliseconds(0), [this, end = std::move(end)] {
      devices_ = 0;
      const OnEnd on_end = std::move(on_end_);
      const RunnerEnd last = end;
      on_end(last);
    });
  }

  net::Loop& loop_;
  const fs::path keeper_, run_;
  const CommandSpec command_;
  OnEnd on_end_;
  int64_t devices_ = 0;
  int64_t attempt_ = 0;  // of the keeper
  bool stopping_ = false;
  Descriptor pid_fd_;
  pid_t pid_ = -1;
  bool child_ = false;
  net::Loop::Watch end_watch_;
  net::Loop::Timer end_timer_;
};

}  // namespace

std::unique_ptr<JobRunner> make_command_runner(net::Loop& loop, const fs::path& keeper,
                                               const fs::path& run, const CommandSpec& command) {
  std::error_code error;
  fs::create_directories(run / "checkpoints", error);
  if (error) fail_errno(run.string(), error.value());
  return std::make_unique<CommandRunner>(loop, keeper, run, command);
}

}  // namespace ductile::cluster
