#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/table.h"
#include "ductile/plan/planner.h"

namespace ductile::plan {

// The planners of others, from their papers, and two simple ones, with which ours is compared.
struct Baseline {
  std::string_view name;
  std::string_view help;
  bool chain = false;  // whether it plans only chains; its plans run as chains, see chained()
};
Table<Baseline> baselines();

struct BaselineResult {
  Plan plan;            // placed, with evaluated predicted_seconds; no stages: there is no plan
  std::string failure;  // why there is no plan; empty: there is one
  double cpu_seconds = 0;
  bool timed_out = false;  // its time was over first: with more it may have found a better plan
  bool ok() const { return failure.empty(); }
};

// Runs the baseline of that name, with the micro-batch size among options.micro_batches that is
// best by the evaluator. Memory limits are respected, and options.replicas by the planners of equal
// degrees (interleaved, zb-h1, zb-v); the others know nothing of it. Throws invalid_argument for an
// unknown name, with the nearest one, and for micro-batches that do not divide the batch.
BaselineResult run_baseline(std::string_view name, const graph::Graph& graph,
                            const Devices& devices, const PlannerOptions& options);

// The graph with an edge of no bytes from each stage to the next. Plans of a planner that plans
// only chains also run as chains (as GraphPipe's authors do for their comparison), so the plans of
// baselines with `chain` are evaluated on this graph. plan.stages must be in the order of the
// chain.
graph::Graph chained(const graph::Graph& graph, const Plan& plan);

// The whole graph as chains, of which every plan is a chain of stages: with an edge of no bytes
// from each operator to the next one, in each of the orders that the planner searches along (branch
// after branch; all branches in step, where that is another order). They give our planner, with all
// that it may do, to chains.
std::vector<graph::Graph> as_chains(const graph::Graph& graph);

}  // namespace ductile::plan
