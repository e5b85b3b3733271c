// A saved state that cannot have been saved: a disk, or somebody, altered it.
#include <set>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/control/membership_impl.h"

namespace ductile::control {
namespace {

// Numbers that only count up, one a process or a change: none comes near.
constexpr uint64_t kMost = uint64_t{1} << 62;

template <class T>
void check(const char* key, T value, T least, T most) {
  if (value < least || value > most)
    fail(ErrorCode::data_loss, "saved controller state: '{}' is {}, not {} to {}", key, value,
         least, most);
}

void check_plan(const GenerationPlan& plan, int64_t virtual_ranks, WorkerId next_worker) {
  const auto wrong = [](const char* what) {
    fail(ErrorCode::data_loss, "saved controller state: 'plan' {}", what);
  };
  if (plan.start < 0) wrong("starts before step 0");
  if (plan.number == 0 && !plan.members.empty()) wrong("has members, and no number");
  if (plan.number > 0 && plan.members.empty()) wrong("has no members");
  std::set<WorkerId> ids;
  int64_t at = 0;
  for (const Member& member : plan.members) {
    if (member.worker < 1 || member.worker >= next_worker) wrong("has a worker that never was");
    if (!ids.insert(member.worker).second) wrong("has a worker twice");
    if (member.ranks.begin != at || member.ranks.end < at) wrong("leaves virtual ranks out");
    at = member.ranks.end;
  }
  if (plan.number > 0 && at != virtual_ranks) wrong("leaves virtual ranks out");
  for (const Member& member : plan.members)
    if (member.source == StateSource::peer && !ids.contains(member.feeder))
      wrong("has a worker that is fed by none of its members");
}

}  // namespace

void Membership::State::check_restored() const {
  constexpr int64_t kSteps = int64_t{1} << 62;
  check<int64_t>("wanted", wanted, 1, options.virtual_ranks);
  check<uint64_t>("incarnation", incarnation, 1, kMost);
  check<uint64_t>("next_worker", next_worker, 1, kMost);
  check<uint64_t>("granted", granted, plan->number, kMost);
  check<int64_t>("high_water", high_water, 0, kSteps);
  check<int64_t>("formed_high", formed_high, 0, kSteps);
  check<int64_t>("unsaved_steps", unsaved_steps, 0, kSteps);
  check<int64_t>("failures", failures, 0, kSteps);
  check<int64_t>("barren", barren, 0, kSteps);
  for (const auto& [id, worker] : workers) check<uint64_t>("worker", id, 1, next_worker - 1);
  for (const int64_t step : checkpoints) check<int64_t>("checkpoints", step, 0, kSteps);
  if (change) check<uint64_t>("change.number", change->number, 1, granted);
  if (publishing) {
    check<uint64_t>("publishing.worker", publishing->worker, 1, next_worker - 1);
    check<int64_t>("publishing.step", publishing->step, 0, kSteps);
  }
  if (after != Phase::preempted && after != Phase::finished && after != Phase::failed)
    fail(ErrorCode::data_loss, "saved controller state: 'after' is \"{}\", which is no end",
         to_string(after));
  check_plan(*plan, options.virtual_ranks, next_worker);
}

}  // namespace ductile::control
