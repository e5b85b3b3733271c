// How a service ends: its jobs are saved and stopped, and neither they nor the store hold it for
// ever.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <variant>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/cluster/service_impl.h"

namespace ductile::cluster {
namespace {

using std::chrono::milliseconds;

// A store that takes nothing is waited for so long, and looked at so often.
constexpr milliseconds kUnwritten{10'000}, kLookAtStore{1000};

}  // namespace

void Service::Impl::end_if_idle() {
  if (!stopping_ || !on_stopped_) return;
  bool written = writer_.idle();
  for (const auto& [id, live] : live_) {
    if (live.runner) return;
    written = written && !live.starting;
  }
  if (!written && !store_takes_nothing()) return;
  make_poster(loop_, alive_)(std::exchange(on_stopped_, {}));
}

// Whether the end does not wait for the store: since no job runs any more it has taken nothing for
// a while, or what keeps it from that does not pass by itself. What it does not say, the next
// service finds in the run directories.
bool Service::Impl::store_takes_nothing() {
  stop_soon_ = loop_.after(kLookAtStore, [this] { end_if_idle(); });
  const auto& refusal = writer_.refusal();
  if (!refusal) {
    unwritten_since_.reset();
    return false;
  }
  if (!unwritten_since_) unwritten_since_ = loop_.now();
  if (refusal->fault != StoreFault::read_only && loop_.now() < *unwritten_since_ + kUnwritten)
    return false;
  log_line(
      fmt::format("the store cannot be written ({}), so the service ends without that: its jobs "
                  "are stopped, though the store says that they run, and the next service goes on "
                  "with them",
                  refusal->text));
  return true;
}

// The store is damaged, or contradicts the service: what is not known to be written must not be
// built upon.
void Service::Impl::give_up(const Error& error) {
  if (std::exchange(gave_up_, true)) return;
  for (auto& [id, live] : live_) live.starting = live.starting && live.runner;  // it never will
  stop([failed = options_.on_failure, error] {
    if (failed) failed(error);
  });
}

// A job that does not end must not keep the next service from beginning.
void Service::Impl::end_anyway() {
  if (!on_stopped_) return;
  std::string left;
  for (const auto& [id, live] : live_)
    if (live.runner || live.starting)
      left += fmt::format("{}{} ({})", left.empty() ? "" : ", ", id, live.record.submission.name);
  log_line(
      fmt::format("the service ends, though it was not done with stopping jobs ({}); the next "
                  "service goes on with what it finds of them",
                  left.empty() ? "what it had to write waits" : left));
  make_poster(loop_, alive_)(std::exchange(on_stopped_, {}));
}

void Service::Impl::stop(std::function<void()> on_stopped) {
  http_.reset();
  on_stopped_ = std::move(on_stopped);
  stopping_ = true;
  engine_->stop();
  store_.note_stop();
  double grace = 0;
  for (const auto& [id, live] : live_)
    if (const auto* command = std::get_if<CommandSpec>(&live.work); command && live.runner)
      grace = std::max(grace, command->grace);
  const auto patience = static_cast<int64_t>(1000 * (options_.stop_patience + grace));
  stop_end_ = loop_.after(milliseconds(patience), [this] { end_anyway(); });
  remember_now();
  for (auto& [id, live] : live_) {
    if (live.runner) preempt(live);
  }
  writer_.write([](Change& change) { change.record(0, "stopped", "{}", wall_seconds()); });
  end_if_idle();  // where nothing is written any more
}

}  // namespace ductile::cluster
