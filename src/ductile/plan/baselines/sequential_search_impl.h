#pragma once

#include <string>

#include "ductile/plan/label_search_impl.h"

namespace ductile::plan {

// The sequential planners of others: stages one after the other, the slowest as fast as possible
// (time per sample, gradient sums included), for one micro-batch size. Table: state x devices x
// sum of data-parallel degrees behind; PipeDream (Narayanan et al., SOSP 2019, section 3.1) knows
// no tensor parallelism, so its two last ones are one. With s the sum of degrees from a stage on
// and r its own, ceil(s / r) micro-batches are in flight.
struct SequentialResult {
  bool found = false;
  bool timed_out = false;
  double seconds_per_sample = 0;
  Plan plan;  // in_flight as for a chain of stages
};
SequentialResult sequential_search(const SearchSpace& space, const Island& island,
                                   const PlannerOptions& options, int64_t micro_batch,
                                   bool tensor_and_recompute, Clock::time_point deadline);

// GraphPipe's partitioner (Jeon et al., ASPLOS 2025, Algorithm 1) for one micro-batch size: halving
// on the time per sample; for each, dynamic programming over series-parallel subgraphs, devices and
// the samples in flight behind, degrees powers of two, fewest samples in flight at the source. What
// is not series-parallel becomes a chain in topological order.
SequentialResult graphpipe_search(const graph::Graph& graph, const Island& island,
                                  const PlannerOptions& options, int64_t micro_batch,
                                  Clock::time_point deadline);

}  // namespace ductile::plan
