#pragma once

#include <functional>
#include <vector>

#include "ductile/graph/graph.h"

namespace ductile::graph {

// The edges (u, v) of the topology such that no longer path leads from u to v: the transitive
// reduction, unique for an acyclic graph (Aho, Garey, Ullman 1972), sorted. Memory O(n + m); time
// O(n m) at worst, near linear where edges are short, as only what lies between u and its farthest
// successor is searched, and only for operators with several successors.
std::vector<std::pair<OpId, OpId>> transitive_reduction(const Topology& topology);

// A smaller graph that stands for `original`; members[i] lists, ascending, the operators merged
// into operator i. Costs are added, workspace and the bytes of passes the larger; names are those
// of the costliest member. It serves to look at a graph: plans and their memory are those of the
// whole.
struct Contraction {
  Graph graph;
  std::vector<std::vector<OpId>> members;
};

// Merges each operator for which `trivial` holds into a neighbour: its only successor, else its
// only predecessor, else the last of its predecessors, else the first of its successors; each of
// these keeps the graph acyclic. So dangling inputs (parameters, constants) vanish into their
// readers. An operator without neighbours, or tied, stays.
Contraction contract(const Graph& original, const std::function<bool(const Op&)>& trivial);

// True where an operator takes no time and has no parameters.
bool is_free(const Op& op);

// Merges by given groups: group[op] is 0 .. n-1. Throws invalid_argument where that makes a cycle.
Contraction merge_groups(const Graph& original, const std::vector<int>& group);

}  // namespace ductile::graph
