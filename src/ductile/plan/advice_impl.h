#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ductile/plan/interval_search_impl.h"

namespace ductile::plan {

// Where memory is so scarce that the search, cut short, found nothing: appends a plan of fewest
// devices.
void find_any(const SearchSpace& space, const Island& island, const PlannerOptions& options,
              std::span<const int64_t> sizes, Clock::time_point deadline,
              std::vector<Candidate>& found);

// What would make an infeasible request feasible, by the formula and with all devices as the
// weakest of them: Planned::memory_needed and devices_needed.
void diagnose(const SearchSpace& space, const Island& island, const PlannerOptions& options,
              std::span<const int64_t> sizes, Clock::time_point deadline, Planned& out);

// The same devices, where those of less memory have this much.
Devices with_memory(const Devices& devices, double least);

// Makes memory_needed the least that the planner itself finds to be enough: it counts as the judge
// does, and knows groups that have more. `fits`: whether with_memory() has a plan; nothing where
// that could not be told in time, which leaves the figure of the formula.
void settle_memory(const Devices& devices, const std::function<std::optional<bool>(double)>& fits,
                   Planned& out);

}  // namespace ductile::plan
