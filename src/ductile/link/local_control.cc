#include "ductile/link/local_control.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include <poll.h>

#include "ductile/base/error.h"
#include "ductile/link/addresses.h"
#include "ductile/link/boot_clock.h"
#include "ductile/link/command_queue.h"
#include "ductile/link/job_driver.h"
#include "ductile/link/told_cost.h"
#include "ductile/link/worker_processes.h"
#include "ductile/run/meters.h"

namespace ductile::link {
namespace {

using namespace control;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kCostAge{100};

// Nobody but the worker itself could be waited for, and it is the one who asks.
MembershipOptions for_one(MembershipOptions options) {
  constexpr Time kNever = std::chrono::hours(24 * 365);
  options.min_workers = options.max_workers = 1;
  options.num_hosts = 1;
  options.max_begin_tries = 1;
  options.resend = Time{0};  // nothing is on its way: what was not followed can be at once
  options.heartbeat_deadline = options.start_deadline = options.pause_deadline = kNever;
  return options;
}

}  // namespace

struct LocalControl::Impl : JobWorld {
  explicit Impl(LocalControlOptions options)
      : driver({options.run, for_one(std::move(options.membership)), options.keep_checkpoints,
                std::move(options.on_note)},
               *this),
        run_path(options.run.string()),
        worker_program(std::move(options.worker_program)),
        core_seconds_before(cost.read().core_seconds) {}

  // ---- the world of the job: this thread
  void launch(const LaunchWorker& command) override {
    if (protocol) return;  // the one there is ends; see end()
    WorkerOptions options;
    options.worker = id = command.worker;
    options.address = kInItsControl;
    options.lease = driver.membership_options().lease;
    protocol.emplace(options);
    driver.log("launch", fmt::format("worker {}: {}", id, command.reason));
  }
  // The own worker is told to exit, and one of an earlier control, which adopt() could not end,
  // acts no longer than its lease.
  void kill(const KillWorker&) override {}
  void send(const Instruction& instruction) override {
    if (instruction.worker != id) return;
    job_cost.hear(instruction);
    told_to_stop = told_to_stop || std::holds_alternative<Stop>(instruction.what);
    instructions.push_back(instruction);
  }
  void adopt(const std::vector<WorkerStatus>& workers) override {
    for (const WorkerStatus& report : workers)
      if (is_gone(report)) driver.add(WorkerExited{report.worker, -1, 0});
  }

  // Certainly, and for good: this process holds the run's lock, so no controller starts it again.
  bool is_gone(const WorkerStatus& report) const {
    if (report.address == kInItsControl) return true;
    if (PeerAddress::parse(report.address).place != PeerAddress::here("").place) return false;
    try {
      return end_worker(worker_program, run_path, report.worker);
    } catch (const Error&) {  // it cannot be looked at now
      return false;
    }
  }

  // ---- the worker
  void feed(const WorkerEvent& event) {
    for (WorkerCommand& command : protocol->apply(event, boot_time())) {
      if (auto* send = std::get_if<SendStatus>(&command)) {
        last = std::move(send->report);
        report(cost.recent(kCostAge));
      } else {
        commands.add(std::move(command));
      }
    }
  }
  void report(const run::Cost& spent) {
    last.cost = spent;
    last.cost.core_seconds -= core_seconds_before;
    driver.add(WorkerReported{last});
  }
  // Until both machines have nothing to say to each other.
  void settle() {
    do {
      driver.listening();
      driver.drain();
      for (const Instruction& instruction : std::exchange(instructions, {}))
        feed(InstructionReceived{instruction});
    } while (driver.has_work());
  }
  // The report comes before time is said to have passed: a step may have taken longer than a
  // heartbeat may.
  void look_round() {
    feed(Beat{});
    driver.take_published();
    settle();
    if (const int number = asked.exchange(0); number != 0) ask_to_preempt(number);
    driver.look_at_clock();
    settle();
    if (driver.gives_up() && !unsaved) {
      unsaved = driver.end_unsaved();
      commands.add(Exit{unsaved->reason});
    }
  }
  void ask_to_preempt(int number) {
    if (number > 0) driver.signal(number);
    driver.request(PreemptJob{});
    settle();
  }
  // Whoever takes it ends.
  void hand_out(const Exit& exit) {
    handed_out = exit.reason;
    if (unsaved) return;
    ++last.sequence;
    report(cost.read());
    driver.add(WorkerExited{id, 0, 0});
    settle();
  }

  JobDriver driver;
  const std::string run_path;
  const fs::path worker_program;
  run::CostMeter cost;
  const double core_seconds_before;  // of this process, which may have done other things
  WorkerId id = 0;
  std::optional<WorkerProtocol> protocol;
  WorkerStatus last;  // that was told
  bool told_to_stop = false;
  CommandQueue commands;
  ToldCost job_cost;
  std::deque<Instruction> instructions;
  std::atomic<int> asked{0};  // to preempt: the signal, or -1
  std::optional<JobEnd> unsaved;
  std::optional<std::string> handed_out;  // the reason of Exit
  std::optional<JobEnd> ended;
};

LocalControl::LocalControl(const run::RunLock&, LocalControlOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  JobDriver& driver = impl_->driver;
  driver.restore();
  driver.start(1);
  while (!impl_->protocol) {
    driver.listening();
    driver.look_at_clock();
    driver.drain();
    if (driver.gives_up() || driver.over())
      fail(ErrorCode::unavailable, "the job could not be started: {}", driver.why());
    if (!impl_->protocol)
      std::this_thread::sleep_for(std::clamp(driver.patience(), milliseconds(1), milliseconds(50)));
  }
}

LocalControl::~LocalControl() = default;

WorkerId LocalControl::worker() const { return impl_->id; }

void LocalControl::tell(const WorkerEvent& event) {
  if (const auto* leave = std::get_if<LeaveAsked>(&event)) {
    preempt(leave->signal);
    return;
  }
  impl_->look_round();
  impl_->feed(event);
  impl_->settle();
}

std::optional<WorkerCommand> LocalControl::next(milliseconds wait) {
  const Clock::time_point until = Clock::now() + wait;
  while (true) {
    if (impl_->handed_out) return std::nullopt;
    impl_->look_round();
    if (auto command = impl_->commands.take()) {
      if (const auto* exit = std::get_if<Exit>(&*command)) impl_->hand_out(*exit);
      return command;
    }
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    if (left <= milliseconds{0}) return std::nullopt;
    constexpr milliseconds kBeat{100};  // a signal's wish is heard as soon
    pollfd published{impl_->driver.publisher_fd(), POLLIN, 0};
    const milliseconds nap = std::min({left, impl_->driver.patience(), kBeat});
    if (::poll(&published, 1, static_cast<int>(nap.count())) < 0 && errno != EINTR)
      fail_errno("poll", errno);
  }
}

bool LocalControl::abandoned(Generation generation) const {
  return generation <= impl_->commands.abandoned() || impl_->commands.exited();
}

std::optional<run::Cost> LocalControl::job_cost() const { return impl_->job_cost.now(); }

void LocalControl::preempt(int signal) noexcept { impl_->asked = signal > 0 ? signal : -1; }

JobEnd LocalControl::end() {
  Impl& impl = *impl_;
  if (impl.ended) return *impl.ended;
  JobDriver& driver = impl.driver;
  while (impl.handed_out && !impl.unsaved && !driver.at_rest()) {
    driver.listening();
    driver.take_published();
    driver.look_at_clock();
    driver.drain();
    // Else the worker ended by itself, and there is no other.
    if (!impl.told_to_stop && !driver.over() && !driver.has_work())
      driver.request(StopJob{*impl.handed_out});
    if (driver.gives_up()) impl.unsaved = driver.end_unsaved();
    if (!driver.at_rest()) std::this_thread::sleep_for(milliseconds(10));
  }
  impl.ended = impl.unsaved ? *impl.unsaved : driver.end(!impl.handed_out.has_value());
  driver.write_end(*impl.ended);
  return *impl.ended;
}

const Membership& LocalControl::membership() const { return impl_->driver.membership(); }

}  // namespace ductile::link
