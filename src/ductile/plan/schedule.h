#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/plan/cost.h"

namespace ductile::plan {

// A unit of work of one stage on one micro-batch.
enum class Task : uint8_t {
  forward,          // 'F'
  backward,         // 'B': whole (kFkB) or the input part alone (zero-bubble)
  backward_weight,  // 'W': zero-bubble only
};

// For each stage the order in which it does its tasks. Micro-batches are taken in order within
// each kind, so the kinds say all.
using Orders = std::vector<std::vector<Task>>;

// The most micro-batches, summed over stages, that are simulated; a plan with more is refused.
inline constexpr int64_t kMaxTasks = 20'000'000;

std::string to_letters(std::span<const Task> order);  // "F4BFBFB4": letter, count if > 1
// Throws invalid_argument naming the stage: another letter, more than `most` tasks.
std::vector<Task> order_from_letters(std::string_view letters, int stage, int64_t most);

// kFkB: forward until in_flight is full, then k backward and k forward in turn, then the rest
// backward. Needs only the plan.
Orders kfkb_orders(const Plan& plan);

// How a list scheduler prefers among the ready tasks of a stage that fit under in_flight.
struct Priority {
  std::string_view name;
  std::string_view help;
};
std::span<const Priority> zero_bubble_priorities();

// List scheduling in virtual time under the activation cap Stage::in_flight, which is held by a
// micro-batch from the start of its F to the end of its W. Always comes to an end where in_flight
// is at least what in_flight_samples() gives; throws invalid_argument where it does not.
Orders zero_bubble_orders(const Plan& plan, const PlanCosts& costs, size_t priority);

// Plan::orders if given. Else by Plan::schedule the fastest of several, as evaluate() has it: kFkB
// as above, or list schedules under the same cap by each priority rule (without the split two of
// them: backward first, forward first).
Orders make_orders(const Plan& plan, const PlanCosts& costs);

}  // namespace ductile::plan
