#pragma once

#include <span>
#include <vector>

#include "ductile/plan/interval_search_impl.h"

namespace ductile::plan {

// Where memory is so scarce that the search, cut short, found nothing: appends a plan of fewest
// devices.
void find_any(const SearchSpace& space, const Island& island, const PlannerOptions& options,
              std::span<const int64_t> sizes, Clock::time_point deadline,
              std::vector<Candidate>& found);

// What would make an infeasible request feasible: Planned::memory_needed and devices_needed.
void diagnose(const SearchSpace& space, const Island& island, const PlannerOptions& options,
              std::span<const int64_t> sizes, Clock::time_point deadline, Planned& out);

}  // namespace ductile::plan
