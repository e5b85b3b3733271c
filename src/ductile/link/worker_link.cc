#include "ductile/link/worker_link.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <thread>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/control/membership.h"
#include "ductile/link/boot_clock.h"
#include "ductile/link/saved_state.h"
#include "ductile/net/channel.h"

namespace ductile::link {
namespace {

using control::Time;
using std::chrono::milliseconds;

constexpr milliseconds kDialDeadline{1000};
constexpr milliseconds kRedial{100};
constexpr milliseconds kSendDeadline{2000};
constexpr milliseconds kReportedCostAge{100};
constexpr milliseconds kPace{
    5};  // between reports of steps: those of short ones cost more than they

bool says_more_than_steps(control::WorkerStatus report, const control::WorkerStatus& before) {
  report.sequence = before.sequence;
  report.step = before.step;
  report.voted = before.voted;
  report.held = before.held;
  report.next = before.next;
  report.cost = before.cost;
  return report != before;
}

// Waits for `fd` (or -1) to become readable, a wake() or the time; true when `fd` is.
bool wait_for(int fd, int wake_fd, milliseconds wait) {
  pollfd watched[2] = {{wake_fd, POLLIN, 0}, {fd, POLLIN, 0}};
  const int timeout = static_cast<int>(std::clamp<int64_t>(wait.count(), 0, 60'000));
  if (::poll(watched, 2, timeout) < 0 && errno != EINTR) fail_errno("poll", errno);
  uint64_t count = 0;
  if (watched[0].revents != 0) {
    [[maybe_unused]] const ssize_t n = ::read(wake_fd, &count, sizeof count);
  }
  return watched[1].revents != 0;
}

}  // namespace

WorkerLink::WorkerLink(WorkerLinkOptions options, const net::Secret& secret)
    : options_(std::move(options)), secret_(secret), protocol_(options_.worker) {
  worker_identity(options_.job, options_.worker.worker);  // checks the id
  wake_ = opened(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
  heard_at_ = boot_time();
  thread_ = std::jthread([this] { run(); });
}

WorkerLink::~WorkerLink() {
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void WorkerLink::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
}

void WorkerLink::tell(const control::WorkerEvent& event) { apply(event); }

void WorkerLink::apply(const control::WorkerEvent& event) {
  bool report = false;
  bool commands = false;
  control::Generation abandoned = 0;
  {
    const std::lock_guard guard(mutex_);
    const control::Generation before = commands_.abandoned();
    if (const auto* heard = std::get_if<control::InstructionReceived>(&event))
      job_cost_.hear(heard->instruction);
    for (control::WorkerCommand& command : protocol_.apply(event, boot_time())) {
      if (auto* send = std::get_if<control::SendStatus>(&command)) {
        report_ = std::move(send->report);
        report_->cost = cost_.recent(kReportedCostAge);
        urgent_ = urgent_ || says_more_than_steps(*report_, taken_);
        report = urgent_ || boot_time() >= taken_at_ + kPace;
        continue;
      }
      commands_.add(std::move(command));
      commands = true;
    }
    if (commands_.abandoned() > before) abandoned = commands_.abandoned();
    report = report || commands_.exited();
  }
  if (commands) changed_.notify_all();
  if (report) wake();
  if (abandoned > 0 && options_.on_abandon) options_.on_abandon(abandoned);
}

std::optional<control::WorkerCommand> WorkerLink::next(milliseconds wait) {
  std::unique_lock guard(mutex_);
  const auto ready = [this] { return !commands_.empty() || commands_.exited(); };
  if (!changed_.wait_for(guard, wait, ready)) return std::nullopt;
  return commands_.take();
}

bool WorkerLink::abandoned(control::Generation generation) const {
  const std::lock_guard guard(mutex_);
  return generation <= commands_.abandoned() || commands_.exited();
}

std::optional<net::Address> WorkerLink::store() const {
  if (options_.run.empty()) return options_.store;
  try {
    return read_addresses(options_.run).store;
  } catch (const Error&) {  // none was written
    return options_.store;
  }
}

std::optional<run::Cost> WorkerLink::job_cost() const {
  const std::lock_guard guard(mutex_);
  return job_cost_.now();
}

bool WorkerLink::connected() const {
  const std::lock_guard guard(mutex_);
  return connected_;
}

control::WorkerPhase WorkerLink::phase() const {
  const std::lock_guard guard(mutex_);
  return protocol_.phase();
}

int64_t WorkerLink::step() const {
  const std::lock_guard guard(mutex_);
  return protocol_.step();
}

control::Generation WorkerLink::generation() const {
  const std::lock_guard guard(mutex_);
  return protocol_.generation();
}

// ---- The link's thread.

void WorkerLink::say(const std::string& text) {
  if (text == said_) return;  // a controller that is away is told once
  said_ = text;
  if (options_.log) options_.log(text);
}

void WorkerLink::run() {
  while (true) {
    {
      const std::lock_guard guard(mutex_);
      if (stopping_ || commands_.exited()) return;
    }
    std::optional<net::Channel> channel = connect();
    if (channel) {
      said_.clear();
      try {
        converse(*channel);
      } catch (const std::exception& e) {
        say(fmt::format("the connection to the controller broke: {}", e.what()));
      }
    }
    Time silent{0};
    {
      const std::lock_guard guard(mutex_);
      connected_ = false;
      if (stopping_ || commands_.exited()) return;
      silent = boot_time() - heard_at_;
    }
    look_at_record();
    if (silent > std::max(options_.orphan_after, options_.alone)) {
      const std::string reason = fmt::format("no controller answered for {:.0f} seconds",
                                             std::chrono::duration<double>(silent).count());
      say(reason);
      apply(control::InstructionReceived{
          {UINT64_MAX, options_.worker.worker, control::Stop{reason}}});
      return;
    }
    try {
      wait_for(-1, wake_.get(), kRedial);
    } catch (const Error& e) {  // the system has no memory for it now; dialling goes on
      say(e.what());
      std::this_thread::sleep_for(kRedial);
    }
  }
}

// Waiting for a controller that is stopped must not cost the lease.
milliseconds WorkerLink::within_lease(milliseconds wait) const {
  return std::min(wait, std::chrono::ceil<milliseconds>(options_.worker.lease / 8));
}

// A controller that is away grants nothing to anybody else. One that is there, and that this worker
// alone cannot reach, saves a new generation before it does without this worker.
void WorkerLink::look_at_record() {
  control::RecordRead read;
  {
    const std::lock_guard guard(mutex_);
    read = {boot_time(), protocol_.generation()};
    if (options_.run.empty() || !protocol_.misses_controller(read.asked_at) ||
        read.asked_at < look_again_ || read.asked_at - heard_at_ > options_.alone)
      return;
  }
  look_again_ = read.asked_at + options_.worker.lease / 8;
  std::string text = "no controller answers; this worker goes on, as the run's saved state lets it";
  try {
    const auto saved = read_state(state_file(options_.run));
    if (saved && control::may_go_on(*saved, options_.worker.worker, read.generation))
      apply(read);
    else
      text = "no controller answers, and the run's saved state has a newer generation to come";
  } catch (const Error& e) {
    text = fmt::format("no controller answers, and {}", e.what());
  }
  if (text == said_alone_) return;
  said_alone_ = text;
  if (options_.log) options_.log(text);
}

std::optional<net::Channel> WorkerLink::connect() {
  std::vector<net::Address> places = {options_.controller};
  if (!options_.run.empty()) {
    try {
      const net::Address now = read_addresses(options_.run).controller;
      if (now != places.front()) places.insert(places.begin(), now);
    } catch (const Error&) {  // none was written
    }
  }
  for (const net::Address& place : places) {
    try {
      net::Admission admission = net::dial(
          place, secret_, worker_identity(options_.job, options_.worker.worker),
          controller_identity(options_.job), {.socket = options_.socket, .wait_for_server = false},
          net::Clock::now() + within_lease(kDialDeadline));
      return net::Channel(std::move(admission.socket), *std::move(admission.seal));
    } catch (const Error& e) {
      say(fmt::format("cannot reach the controller: {}", e.what()));
    }
  }
  return std::nullopt;
}

bool WorkerLink::take_reports(std::optional<control::WorkerStatus>& report) {
  const std::lock_guard guard(mutex_);
  if (urgent_ || stopping_ || commands_.exited() || boot_time() >= taken_at_ + kPace)
    report = std::exchange(report_, std::nullopt);
  if (report) {
    urgent_ = false;
    taken_ = *report;
    taken_at_ = boot_time();
  }
  if (commands_.exited() && newest_) {  // the last one says what all of it has cost
    if (!report) report = newest_;
    ++report->sequence;
    report->cost = cost_.read();
  }
  return !stopping_ && !commands_.exited();
}

control::Time WorkerLink::beat_in() const {
  const std::lock_guard guard(mutex_);
  const Time now = boot_time();
  // Once more soon after a report: nobody wakes this thread for one that waits.
  if (now < taken_at_ + kPace || report_) return std::max(Time{0}, taken_at_ + kPace - now);
  return protocol_.next_deadline() - now;
}

void WorkerLink::converse(net::Channel& channel) {
  {
    const std::lock_guard guard(mutex_);
    connected_ = true;
  }
  // What was sent over a connection that broke may be lost, so a new one begins with a report.
  bool first = true;
  while (true) {
    apply(control::Beat{});
    std::optional<control::WorkerStatus> report;
    const bool go_on = take_reports(report);
    if (report) newest_ = report;
    if (report || (first && newest_)) {
      const std::string text = dump_json(control::to_json(*newest_));
      channel.send(std::as_bytes(std::span(text)), net::Clock::now() + within_lease(kSendDeadline));
    }
    first = false;
    look_at_record();
    if (!go_on) return;
    const milliseconds wait = std::chrono::ceil<milliseconds>(beat_in());
    if (!wait_for(channel.socket().fd(), wake_.get(), wait)) continue;
    while (auto payload = channel.try_receive()) {
      const std::string_view text(reinterpret_cast<const char*>(payload->data()), payload->size());
      const auto value = parse_json(text);
      {
        const std::lock_guard guard(mutex_);
        heard_at_ = boot_time();
      }
      said_alone_.clear();
      apply(control::InstructionReceived{control::instruction_from_json(value)});
    }
  }
}

}  // namespace ductile::link
