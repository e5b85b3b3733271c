#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ductile/base/table.h"
#include "ductile/plan/planner.h"

namespace ductile::plan {

// The planners of others, from their papers, and two simple ones: what ours is measured against.
struct Baseline {
  std::string_view name;
  std::string_view help;
  bool chain = false;  // knows chains alone: run as one, see chained()
};
Table<Baseline> baselines();

struct BaselineResult {
  Plan plan;            // placed; no stages where there is none. predicted_seconds: evaluated
  std::string failure;  // then: why
  double cpu_seconds = 0;
  bool ok() const { return failure.empty(); }
};

// The baseline of that name, with the micro-batch size that the evaluator likes best among
// options.micro_batches; memory is respected. Throws invalid_argument for another name, with the
// nearest.
BaselineResult run_baseline(std::string_view name, const graph::Graph& graph,
                            const Devices& devices, const PlannerOptions& options);

// The graph with an edge of no bytes from each stage to the next: a planner that knows chains alone
// also runs them as chains (as GraphPipe's authors do for their comparison). plan.stages must be in
// the order of the chain. Evaluate the plans of baselines with `chain` on it.
graph::Graph chained(const graph::Graph& graph, const Plan& plan);

}  // namespace ductile::plan
