#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "ductile/base/interruption.h"
#include "ductile/plan/planner.h"
#include "ductile/plan/search_space_impl.h"

namespace ductile::plan {

using Clock = std::chrono::steady_clock;

// Also where a search learns that it is not wanted any more.
inline bool is_past(Clock::time_point deadline) {
  ask_whether_wanted();
  return Clock::now() > deadline;
}

// How a stage may be run: a degree, split, kept or recomputed, optimiser sharded or not.
struct Shape {
  int replicas = 1;
  int tensor = 1;
  int variant = 0;  // of the space: tensor degree and recompute
  bool shard = false;
  int group = 0;  // of islands_of()
  int devices() const { return replicas * tensor; }
};

// What the formula of planner.h needs of a stage in a shape.
struct StageCost {
  double forward = 0;   // f
  double tau = 0;       // per micro-batch; for throughput per sample, gradient sum included
  double round = 0;     // what it adds to a round trip: tau but for zero-bubble
  double transfer = 0;  // x
  double sync = 0;      // s, from the end of the round trip on
  int64_t most = 0;     // micro-batches in flight that memory allows
};

// What is left of a stage's round trip where weight gradients are taken in what would be waits.
// (The wait of a chain of equal stages is f + g - 2 w for each: ZB-H1, arXiv 2401.10241,
// section 2.)
inline double round_without_weights(double forward, double backward_input, double backward_weight) {
  return forward + std::max(0.0, backward_input - backward_weight);
}

StageCost stage_cost(const StageSums& sums, const Boundary& boundary, const Shape& shape,
                     const graph::Graph& graph, const Island& island, int64_t micro_batch,
                     int64_t batch, Objective objective);

}  // namespace ductile::plan
