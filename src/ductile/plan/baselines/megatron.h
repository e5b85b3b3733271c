#pragma once

#include <string>

#include "ductile/plan/baselines/baselines.h"

namespace ductile::plan {

// Plans for Megatron-LM, which runs chains of transformer layers with equal degrees everywhere.

// Throws invalid_argument that names the operator if the graph is not an embedding, transformer
// layers and a head in a row.
void check_megatron(const graph::Graph& graph);

// The command-line options with which it runs the plan, including the layout
// (--pipeline-model-parallel-layout "Et*3|(tt|)*29,m|L"). Throws the error above, or
// invalid_argument that names the operator or stage and the reason: a layer is cut in two; degrees
// or micro-batches differ; the stages are not a chain.
std::string megatron_options(const graph::Graph& graph, const Plan& plan);

// The fastest plan, by evaluate(), of those that it can run: uniform degrees, and layers divided so
// that the busiest part is as light as possible, interleaved or not; all devices are in use. Looks
// for no longer than options.time_limit. Throws the errors above, and invalid_argument if
// options.batch, micro_batches and replicas do not go together, or the replicas with the devices.
BaselineResult megatron_plan(const graph::Graph& graph, const Devices& devices,
                             const PlannerOptions& options);

}  // namespace ductile::plan
