#pragma once

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
  double transfer = 0;  // x
  double sync = 0;      // s
  int64_t most = 0;     // micro-batches in flight that memory allows
};

StageCost stage_cost(const StageSums& sums, const Boundary& boundary, const Shape& shape,
                     const graph::Graph& graph, const Island& island, int64_t micro_batch,
                     int64_t batch, Objective objective);

}  // namespace ductile::plan
