#pragma once

#include <vector>

#include "ductile/graph/graph.h"

namespace ductile::graph {

// For each operator the last one through which every path from a source to it passes; -1 where
// there is none (a virtual source above all sources). O(m log n).
std::vector<OpId> immediate_dominators(const Topology& topology);
// The same towards the sinks.
std::vector<OpId> immediate_postdominators(const Topology& topology);

// The operators through which every path from a source to a sink passes, in topological order.
// Between two that follow one another lies a part that can be cut out of the model.
std::vector<OpId> cut_chain(const Topology& topology);

}  // namespace ductile::graph
