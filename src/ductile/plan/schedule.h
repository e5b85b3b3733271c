#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ductile/plan/cost.h"
#include "ductile/spec/stage_orders.h"

namespace ductile::plan {

using spec::order_from_letters;
using spec::Task;
using spec::to_letters;

// For each stage, the order of its tasks. Micro-batches are taken in order within each kind, so the
// kinds are enough.
using Orders = std::vector<std::vector<Task>>;

// The largest number of micro-batches, summed over stages, that is simulated; a plan with more is
// refused.
inline constexpr int64_t kMaxTasks = 20'000'000;

// kFkB: forward until in_flight is full, then k backward and k forward in turn, then the remaining
// backward tasks.
Orders kfkb_orders(const Plan& plan);

// A rule by which a list scheduler chooses among the ready tasks of a stage that in_flight allows.
struct Priority {
  std::string_view name;
  std::string_view help;
};
std::span<const Priority> zero_bubble_priorities();

// List scheduling in virtual time under the activation cap Stage::in_flight; a micro-batch counts
// towards the cap from the start of its F to the end of its W. It always ends if in_flight is at
// least the result of in_flight_samples(); throws invalid_argument if it does not end.
Orders zero_bubble_orders(const Plan& plan, const PlanCosts& costs, size_t priority);

// Plan::orders if they are given. Otherwise the fastest, by evaluate(), of the schedules that
// Plan::schedule allows: kFkB as above, and list schedules under the same cap by each priority rule
// (without the split there are two rules: backward first and forward first).
Orders make_orders(const Plan& plan, const PlanCosts& costs);

}  // namespace ductile::plan
