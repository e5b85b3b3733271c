#pragma once

#include <utility>
#include <vector>

#include "ductile/graph/graph.h"

namespace ductile::graph {

// The operators as a tree of compositions: one after the other, side by side, or, where a part is
// not series-parallel, as an island: a small graph whose edges are trees.
struct SpTree {
  enum class Kind {
    op,
    series,    // children in order; each operator of one precedes every one of the next
    parallel,  // children with nothing between them
    island,
  };
  struct Node {
    Kind kind = Kind::op;
    OpId op = -1;
    // Numbers of nodes, all below this one's. A child of an island may be -1: a plain dependency.
    std::vector<int> children;
    // Of an island: child i leads from point ends[i].first to point ends[i].second; point 0 is its
    // entry, num_points - 1 its exit, and the numbers are a topological order.
    std::vector<std::pair<int, int>> ends;
    int num_points = 0;
  };
  std::vector<Node> nodes;
  int root = -1;
  // Edges left after every series and parallel reduction; 0 if the graph is series-parallel.
  int residual_edges = 0;

  bool is_series_parallel() const { return residual_edges == 0; }
};

// Two-terminal series-parallel recognition by reductions (Valdes, Tarjan, Lawler 1982), on the
// graph with every operator turned into an edge; sources and sinks meet in virtual terminals.
// Pass a transitive reduction: dependencies that others imply hide structure. What resists is cut
// at the points that all its paths pass and at its terminals; the rest are islands. Near linear.
SpTree series_parallel(int num_ops, const std::vector<std::pair<OpId, OpId>>& reduced_edges);
SpTree series_parallel(const Graph& graph);  // of its transitive reduction

// The operators below a node, ascending.
std::vector<OpId> ops_below(const SpTree& tree, int node);

}  // namespace ductile::graph
