#pragma once

#include <string>
#include <vector>

#include "ductile/plan/stage_cost_impl.h"

namespace ductile::plan {

// What is searched of a graph, whatever the devices: all downsets where those are few enough, else
// the cuts of two orders, and of large ones coarse cuts first.
struct Spaces {
  std::vector<SearchSpace> full, coarse;
  std::vector<std::vector<OpId>> orders;  // branch after branch; in step, if that is another
  std::string text;                       // "all 242 downsets" ...
  bool cut_short = false;                 // fewer cuts than there might be, for want of time
  bool is_large() const { return !coarse.empty() || cut_short; }
};

// `graph` must outlive the result.
Spaces make_spaces(const graph::Graph& graph, const PlannerOptions& options,
                   Clock::time_point deadline);
// The first number that no output has: of edges of no bytes, which only say what comes first.
int unused_output(const graph::Graph& graph);
// The operators as one chain: an edge of no bytes from each to the next.
graph::Graph in_a_row(const graph::Graph& graph, const std::vector<OpId>& order);
// The cuts of one order alone, as for a chain.
Spaces chain_spaces(const graph::Graph& graph, const std::vector<OpId>& order);

}  // namespace ductile::plan
