#pragma once

#include <string>

#include "ductile/plan/planner.h"

namespace ductile::plan {

// Hand-over to Megatron-LM, which runs chains of transformer layers with equal degrees everywhere.

// The command-line options that make it run the plan, its layout among them
// (--pipeline-model-parallel-layout "Et*3|(tt|)*29,m|L"). Throws invalid_argument naming the
// operator or stage and why: not an embedding, transformer layers and a head in a row; a layer cut
// in two; degrees or micro-batches that differ; stages that are no chain.
std::string megatron_options(const graph::Graph& graph, const Plan& plan);

// The fastest plan of those it can run, by evaluate(): uniform degrees, layers cut so that the
// busiest part is as light as can be, interleaved or not. No stages where none fits memory. Throws
// as above where the graph is none of its models.
Plan megatron_plan(const graph::Graph& graph, const Devices& devices,
                   const PlannerOptions& options);

}  // namespace ductile::plan
