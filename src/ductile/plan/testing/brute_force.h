#pragma once

#include "ductile/plan/planner.h"

namespace ductile::plan {

// The slow twin of the search: every partition of the operators into sets whose quotient is
// acyclic, every shape of every set, the formula of planner.h. For tests: at most 16 operators.
// Infinite where nothing fits.
double brute_force(const graph::Graph& graph, const Devices& devices,
                   const PlannerOptions& options);

// A small graph, its devices and a request, drawn from a seed. Shapes: chains with skips, branches,
// trees, random order, several sources and sinks, operators of several outputs; memory from scarce
// to ample; tied weights, workspace, splittable and recomputable operators.
struct SmallCase {
  graph::Graph graph;
  Devices devices;
  PlannerOptions options;
};
SmallCase small_case(uint64_t seed);

}  // namespace ductile::plan
