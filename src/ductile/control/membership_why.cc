// What the job waits for, in the words of its user.
#include <fmt/format.h>

#include "ductile/control/membership_impl.h"

namespace ductile::control {
namespace {

double seconds(Time time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::string Membership::why(Time now) const {
  const State& s = *state_;
  if (s.winding_down)
    return fmt::format("{}: waits for {} worker processes to end", to_string(s.phase),
                       s.workers.size());
  if (!s.active())
    return fmt::format("{}{}{}", to_string(s.phase), s.reason.empty() ? "" : ": ", s.reason);

  int64_t loading = 0, ready = 0, unreachable = 0, not_halted = 0;
  WorkerId slowest = 0;
  bool reached = false;  // a member of the generation
  Time leases{0};        // of those who are not
  for (const auto& [id, worker] : s.workers) {
    if (worker.doomed) continue;
    const bool member = s.plan->find(id) != nullptr;
    reached |= member && worker.reachable;
    if (member) leases = std::max(leases, s.lease_end(worker));
    if (!worker.loaded())
      ++loading;
    else if (!worker.reachable)
      ++unreachable;
    else if (!member)
      ++ready;
    if (member && worker.reachable && s.change && !worker.halted_for(s.change->number)) {
      ++not_halted;
      slowest = id;
    }
  }
  std::string text = fmt::format("{}: ", to_string(s.phase));
  if (s.change) {
    text += fmt::format("no generation runs ({})", s.change->reason);
    if (not_halted > 0)
      text += fmt::format("; waits for {} to {} (worker {} ...)", counted_workers(not_halted),
                          s.change->at_boundary ? "finish the step" : "halt", slowest);
    else if (s.phase == Phase::preempting)
      text += "; waits for the checkpoint";
    else if (!reached && leases > now)
      text += fmt::format("; it may still run, so its lease is waited for: {:.1f} s",
                          seconds(leases - now));
    else if (ready < s.options.min_workers)
      text += fmt::format("; waits for workers: {} ready, at least {} needed", ready,
                          s.options.min_workers);
  } else {
    text += fmt::format("generation {} with {} of {} workers, step {}", s.plan->number,
                        s.plan->members.size(), s.wanted, s.high_water);
    if (s.phase == Phase::finishing) text += "; waits for the result to be saved";
  }
  if (loading > 0)
    text += fmt::format("; {} {} starting", counted_workers(loading), loading == 1 ? "is" : "are");
  if (unreachable > 0) text += fmt::format("; {} cannot be reached", counted_workers(unreachable));
  if (!s.last_save_error.empty()) text += fmt::format("; not saved: {}", s.last_save_error);
  if (s.hosts_away > 0) {
    text += fmt::format("; waits for its hosts: {}", s.last_failure);
    if (now < s.next_try) text += fmt::format("; next try in {:.1f} s", seconds(s.next_try - now));
  } else if (s.begin_errors > 0) {
    text += fmt::format("; {}", s.last_failure);
    if (now < s.next_begin)
      text += fmt::format("; next try in {:.1f} s", seconds(s.next_begin - now));
  } else if (s.failures > 0) {
    const bool few = s.alone() && s.crashes > 0;
    text += fmt::format("; {} {} of at most {}: {}", few ? "crash" : "failure",
                        few ? s.crashes : s.failures,
                        few ? s.options.max_crashes_alone : s.options.max_failures, s.last_failure);
    if (now < s.next_try) text += fmt::format("; next try in {:.1f} s", seconds(s.next_try - now));
  }
  return text;
}

}  // namespace ductile::control
