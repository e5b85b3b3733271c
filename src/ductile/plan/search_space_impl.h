#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ductile/graph/op_set.h"
#include "ductile/plan/cost.h"
#include "ductile/plan/islands_impl.h"
#include "ductile/plan/planner.h"

namespace ductile::plan {

// One way to run the operators of a stage on one device of it.
struct Variant {
  int tensor = 1;
  bool recompute = false;
};

// The space a search walks through. A state is a set of operators still to be given to a stage: a
// downset (closed under predecessors), written "rest". The search starts at the whole graph and
// takes stages off its end: a transition rest -> smaller rest is the stage of the operators
// between. Every chain of downsets is a partition into convex sets whose stages form a DAG, and
// every such partition is a chain of downsets. The stages need not be a chain: who reads whom is
// kept in groups.
//
// A state's readers are summed up in groups: operators of the rest that are read from outside it,
// those with the same readers outside in one group. All that a later stage needs to know of the
// stages taken off is one value for each group.
class SearchSpace {
 public:
  struct Group {
    OpId member = 0;  // any one
    int first = 0;    // its operators: members()[first, first + size)
    int size = 0;
  };
  struct Transition {
    int32_t to = 0;
    int32_t map = 0;       // how the groups of `to` come about: into maps()
    uint64_t touched = 0;  // groups of the state that the stage's operators belong to
    double in = 0;         // Boundary of the stage, bytes per sample
    double out = 0;
  };
  // A group of the state after a transition: groups of the state before (bits; mostly one, or
  // none), and the stage itself if it reads.
  struct MapEntry {
    uint64_t old = 0;
    bool reads_stage = false;
  };
  struct State {
    int32_t size = 0;  // operators of the rest
    int32_t first_transition = 0, num_transitions = 0;
    int32_t first_group = 0, num_groups = 0;
  };

  // All downsets; nothing if their transitions, or the work to make them, pass the cap.
  static bool all_downsets(const graph::Graph& graph, int64_t max_transitions, SearchSpace& out);
  // The downsets that are a prefix of one of these topological orders.
  static SearchSpace of_orders(const graph::Graph& graph,
                               std::span<const std::vector<OpId>> orders);
  // The prefixes of one order, at most max_states of them, cutting equal work where not all.
  static SearchSpace of_order(const graph::Graph& graph, std::vector<OpId> order, int max_states);

  const graph::Graph& graph() const { return *graph_; }
  std::span<const State> states() const { return states_; }  // the largest rest first
  std::span<const Transition> transitions() const { return transitions_; }
  std::span<const Group> groups() const { return groups_; }
  std::span<const MapEntry> maps() const { return maps_; }
  OpId member(int i) const { return members_[i]; }
  bool is_chain() const { return is_chain_; }  // each state contains the next
  bool merges_groups() const { return merges_groups_; }
  bool has_ties() const { return !tied_.empty(); }
  std::span<const OpId> chain() const { return chain_; }  // the order, if a chain
  std::span<const Variant> variants() const { return variants_; }
  std::vector<OpId> stage_ops(int from, int to) const;  // ascending

  // What the stage of transition t, from state `from`, costs as variant v.
  StageSums sums(int from, int t, int v) const;
  // The same without workspace and ties: the difference of two sums.
  StageSums plain_sums(int from, int to, int v) const;
  const StageSums& rest_sums(int state, int v) const {
    return rest_sums_[static_cast<size_t>(state) * variants_.size() + v];
  }
  // Whether any operator of the stage runs split as variant v says; true where it asks for no
  // split.
  bool can_split(int from, int to, int v) const {
    const size_t n = variants_.size();
    return variants_[v].tensor == 1 || splittable_[static_cast<size_t>(from) * n + v] >
                                           splittable_[static_cast<size_t>(to) * n + v];
  }
  int splittable(int state, int v) const {
    return splittable_[static_cast<size_t>(state) * variants_.size() + v];
  }
  bool has_workspace() const { return !workspace_.empty(); }
  const graph::Affine& workspace(int t, int v) const { return workspace_[v][t]; }
  double tied(int t, int v) const {  // bytes that rest_sums() counts twice
    return tied_[v][t];
  }
  bool rest_contains(int state, OpId op) const {
    return is_chain_ ? chain_position_[op] < states_[state].size : rests_[state].contains(op);
  }
  int chain_position(OpId op) const { return chain_position_[op]; }
  const graph::OpCost& op_cost(OpId op, int v) const {
    return op_costs_[static_cast<size_t>(op) * variants_.size() + v];
  }
  const graph::Topology& topology() const { return topology_; }

 private:
  explicit SearchSpace(const graph::Graph& graph);
  friend class SpaceBuilder;

  const graph::Graph* graph_;
  graph::Topology topology_;
  std::vector<Variant> variants_;
  std::vector<graph::OpCost> op_costs_;  // [op][variant]
  std::vector<State> states_;
  std::vector<Transition> transitions_;
  std::vector<Group> groups_;
  std::vector<OpId> members_;
  std::vector<MapEntry> maps_;
  std::vector<StageSums> rest_sums_;                   // [state][variant]
  std::vector<int> splittable_;                        // [state][variant]: operators of the rest
  std::vector<std::vector<graph::Affine>> workspace_;  // [variant][transition], if there is any
  std::vector<std::vector<double>> tied_;  // [variant][transition]: bytes counted twice, if any
  std::vector<graph::OpSet> rests_;        // per state, unless a chain
  std::vector<OpId> chain_;                // the order, if a chain
  std::vector<int> chain_position_;        // where an operator is in it
  bool is_chain_ = false;
  bool merges_groups_ = false;

 public:
  SearchSpace() : graph_(nullptr), topology_(0, {}) {}
};

// Topological orders worth searching along: one branch after the other (depth first), and all
// branches in step (by level).
std::vector<OpId> depth_first_order(const graph::Graph& graph);
std::vector<OpId> level_order(const graph::Graph& graph);
// Both, or the first alone where the second is the same.
std::vector<std::vector<OpId>> search_orders(const graph::Graph& graph);

}  // namespace ductile::plan
