#pragma once

#include <cstdint>
#include <optional>

#include "ductile/plan/planner.h"

namespace ductile::plan {

// Micro-batches divide the batch, so one with few divisors, as a prime number, may leave none of a
// good size: then another batch near it, of which there are.
struct NearBatch {
  int64_t micro_batch = 0;  // of the plan, the largest of its stages
  int64_t next = 0;         // the next larger divisor of its batch
  int64_t batch = 0;        // the other one
  double seconds = 0;       // that an iteration takes with it, by the same judge
};

// Of the best plan that make_plan() found with these arguments. Nothing where its micro-batches are
// not what it lacks: their size was asked for, the next divisor is less than eight times as large,
// there are few of them, or none of a few batches nearby saves a tenth of the time of a sample.
// Plans those, each for a few seconds at most, and all of them within `options.time_limit`: of a
// search that was to end then, what is left.
std::optional<NearBatch> near_batch(const graph::Graph& graph, const Devices& devices,
                                    const PlannerOptions& options, const Planned& planned);

}  // namespace ductile::plan
