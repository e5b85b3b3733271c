#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/plan/stage_cost_impl.h"

namespace ductile::plan {

// The sizes of micro-batches that are asked for, ascending; throws invalid_argument where they, the
// batch and the replicas do not go together.
std::vector<int64_t> sizes_to_try(const PlannerOptions& options);
// Sizes whose iteration alone the judge could not carry out in the time there is are left out, as
// long as others remain.
std::vector<int64_t> sizes_in_time(const std::vector<int64_t>& sizes, int64_t batch,
                                   int64_t most_tasks);
// The work of an iteration, each operator where it costs least: seconds of a device of speed 1.
double least_work(const SearchSpace& space, std::span<const int64_t> sizes, int64_t batch);

// The numbers of replicas that all stages may have, where they have equal ones.
std::vector<int> equal_replicas(int devices, const PlannerOptions& options);

}  // namespace ductile::plan
