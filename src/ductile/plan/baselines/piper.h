#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ductile/graph/graph.h"

namespace ductile::plan {

// Piper's planning problem (Tarnawski et al., NeurIPS 2021) on its own cost model, solved by its
// own algorithm and by ours. A solution is a sequence of stages, each a convex set S of operators
// with tensor degree t and data-parallel degree d. With s the sum of the data-parallel degrees from
// the stage on, y = ceil(s / d) micro-batches are in flight, and
//   time   = 2 c(S, t) / (d bandwidth) + sum over v of [4 (d-1) w_v / (d batch bandwidth) + p_v /
//   d] memory = sum over v of (A_v y + B_v)
// where c(S, t) sums over the edges that cross the border of S their bytes and what the tensor
// group exchanges there. Each operator is kept or recomputed; as few as memory asks for are
// recomputed, by a greedy rule. The objective is the time of the slowest stage.
struct PiperProblem {
  double memory = 0;     // bytes per device
  double bandwidth = 0;  // bytes per second
  int devices = 1;
  int64_t micro_batches = 1;  // in a batch; d divides it
};

struct PiperStage {
  std::vector<graph::OpId> ops;
  int tensor = 1;
  int replicas = 1;
  int in_flight = 1;  // y
  std::vector<graph::OpId> recompute;
};

struct PiperResult {
  bool feasible = false;
  std::string failure;     // too many downsets
  double seconds = 0;      // of the slowest stage, per micro-batch; infinite where infeasible
  double lower_bound = 0;  // no solution is faster (min_devices_search)
  std::vector<PiperStage> stages;
  int64_t downsets = 0;
  double cpu_seconds = 0;
};

// The published dynamic programme: least time for each (downset, devices, sum of degrees). Fails,
// as the published program does, above 40,000 downsets.
PiperResult piper_search(const graph::Graph& graph, const PiperProblem& problem);

// Ours: for a given time the fewest devices of each (downset, sum of degrees); halving on the time.
// Same optimum. Every time that fails is proven impossible, so the result is exact to `precision`.
PiperResult min_devices_search(const graph::Graph& graph, const PiperProblem& problem,
                               double precision = 1e-9);

// The cost model, for any solution: the time, infinite where memory does not suffice or no operator
// allows a degree.
double piper_seconds(const graph::Graph& graph, const PiperProblem& problem,
                     const std::vector<PiperStage>& stages);

}  // namespace ductile::plan
