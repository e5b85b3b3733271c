#include "ductile/graph/reduce.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "ductile/base/error.h"

namespace ductile::graph {
namespace {

// The operators as groups that grow by merging; a valid topological position of each is kept.
class Merger {
 public:
  explicit Merger(const Topology& topology)
      : parent_(topology.num_ops()), next_(topology.num_ops()), previous_(topology.num_ops()) {
    std::iota(parent_.begin(), parent_.end(), 0);
    for (OpId op = 0; op < topology.num_ops(); ++op) {
      position_.push_back(topology.position(op));
      for (OpId to : topology.successors(op)) next_[op].insert(to), previous_[to].insert(op);
    }
  }

  OpId find(OpId op) {
    while (parent_[op] != op) op = parent_[op] = parent_[parent_[op]];
    return op;
  }

  // The neighbour that `op` can join without a cycle, or -1.
  OpId neighbour(OpId op) const {
    const auto by_position = [&](OpId a, OpId b) { return position_[a] < position_[b]; };
    const auto& next = next_[op];
    const auto& previous = previous_[op];
    if (next.size() == 1) return *next.begin();
    if (!previous.empty()) return *std::max_element(previous.begin(), previous.end(), by_position);
    if (!next.empty()) return *std::min_element(next.begin(), next.end(), by_position);
    return -1;
  }

  // `op` joins `into`, whose position stays valid for both (see neighbour()).
  void merge(OpId op, OpId into) {
    parent_[op] = into;
    for (OpId to : next_[op]) {
      previous_[to].erase(op);
      if (to != into) next_[into].insert(to), previous_[to].insert(into);
    }
    for (OpId from : previous_[op]) {
      next_[from].erase(op);
      if (from != into) previous_[into].insert(from), next_[from].insert(into);
    }
    next_[op].clear();
    previous_[op].clear();
  }

 private:
  std::vector<OpId> parent_;
  std::vector<int> position_;
  std::vector<std::set<OpId>> next_, previous_;
};

OpCost sum(const OpCost& a, const OpCost& b) {
  OpCost c = a;
  c.forward += b.forward;
  c.backward_input += b.backward_input;
  c.backward_weight += b.backward_weight;
  c.parameter_bytes += b.parameter_bytes;
  c.activation_bytes += b.activation_bytes;
  c.fixed_bytes += b.fixed_bytes;
  c.workspace_bytes.fixed = std::max(a.workspace_bytes.fixed, b.workspace_bytes.fixed);
  c.workspace_bytes.per_sample =
      std::max(a.workspace_bytes.per_sample, b.workspace_bytes.per_sample);
  c.activation_fixed += b.activation_fixed;
  c.sample_bytes += b.sample_bytes;
  c.waits = a.waits || b.waits;
  c.waiting_bytes += b.waiting_bytes;
  for (MostBytes PassBytes::*pass : {&PassBytes::forward, &PassBytes::backward,
                                     &PassBytes::backward_input, &PassBytes::backward_weight}) {
    c.passes.*pass = larger(a.passes.*pass, b.passes.*pass);
  }
  c.tensor_forward_bytes += b.tensor_forward_bytes;
  c.tensor_backward_bytes += b.tensor_backward_bytes;
  return c;
}

// One operator for all of `members`; each variant that every member which costs something allows.
Op merge_ops(const Graph& graph, const std::vector<OpId>& members,
             const std::vector<double>& inputs) {
  if (members.size() == 1) return graph.ops[members.front()];
  const auto weight = [&](OpId op) { return graph.ops[op].cost.total_per_sample(); };
  const OpId main = *std::max_element(members.begin(), members.end(), [&](OpId a, OpId b) {
    return std::pair(weight(a), -a) < std::pair(weight(b), -b);
  });
  Op out = graph.ops[main];
  out.variants.clear();
  out.cost = {};
  out.max_split = 1;
  out.recomputable = false;
  std::set<std::pair<int, bool>> modes;
  for (OpId member : members) {
    const Op& op = graph.ops[member];
    out.cost = sum(out.cost, op.cost);
    if (op.tied >= 0) out.tied = op.tied;
    for (int t = 2; t <= op.max_split; t *= 2) modes.insert({t, false}), modes.insert({t, true});
    if (op.recomputable) modes.insert({1, true});
    for (const OpVariant& v : op.variants) modes.insert({v.tensor, v.recompute});
  }
  for (const auto& [tensor, recompute] : modes) {
    OpVariant variant{tensor, recompute, {}};
    bool all_allow = true;
    for (OpId member : members) {
      const Op& op = graph.ops[member];
      if (allows(op, tensor, recompute)) {
        variant.cost = sum(variant.cost, cost_of(op, tensor, recompute, inputs[member]));
      } else if (is_free(op)) {
        variant.cost = sum(variant.cost, op.cost);
      } else {
        all_allow = false;
      }
    }
    if (all_allow) out.variants.push_back(variant);
  }
  return out;
}

}  // namespace

std::vector<std::pair<OpId, OpId>> transitive_reduction(const Topology& topology) {
  std::vector<std::pair<OpId, OpId>> kept;
  std::vector<OpId> reached(topology.num_ops(), -1);  // by whom last
  std::vector<OpId> next, stack;
  for (OpId op = 0; op < topology.num_ops(); ++op) {
    const auto row = topology.successors(op);
    next.assign(row.begin(), row.end());
    std::sort(next.begin(), next.end(),
              [&](OpId a, OpId b) { return topology.position(a) < topology.position(b); });
    for (OpId to : next) {
      if (reached[to] == op) continue;
      kept.emplace_back(op, to);
      if (to == next.back()) break;
      stack = {to};
      while (!stack.empty()) {
        const OpId at = stack.back();
        stack.pop_back();
        for (OpId v : topology.successors(at)) {
          if (reached[v] == op || topology.position(v) > topology.position(next.back())) continue;
          reached[v] = op;
          stack.push_back(v);
        }
      }
    }
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

bool is_free(const Op& op) {
  const OpCost& c = op.cost;
  return c.forward == Affine{} && c.backward_input == Affine{} && c.backward_weight == Affine{} &&
         c.parameter_bytes == 0;
}

Contraction merge_groups(const Graph& original, const std::vector<int>& group) {
  DUCTILE_CHECK(group.size() == original.ops.size());
  Contraction out;
  const int num_groups = group.empty() ? 0 : *std::max_element(group.begin(), group.end()) + 1;
  out.members.resize(num_groups);
  for (size_t op = 0; op < group.size(); ++op) {
    out.members[group[op]].push_back(static_cast<OpId>(op));
  }
  const std::vector<double> inputs = input_bytes(original);
  out.graph = original;
  out.graph.ops.clear();
  out.graph.edges.clear();
  for (const auto& members : out.members) {
    DUCTILE_CHECK(!members.empty(), "a group without operators");
    out.graph.ops.push_back(merge_ops(original, members, inputs));
  }
  // The tensors that leave a group are numbered anew: those of different members are different.
  std::map<std::pair<OpId, int>, int> number;
  std::vector<int> used(num_groups);
  std::set<std::tuple<int, int, int>> seen;
  for (const Edge& e : original.edges) {
    const int from = group[e.from], to = group[e.to];
    if (from == to) continue;
    const auto [at, is_new] = number.try_emplace({e.from, e.output}, used[from]);
    used[from] += is_new;
    if (!seen.insert({from, to, at->second}).second) continue;
    Edge edge = e;
    edge.from = from, edge.to = to, edge.output = at->second;
    edge.fused = false;  // of operators as they were
    out.graph.edges.push_back(edge);
  }
  check(out.graph);
  return out;
}

Contraction contract(const Graph& original, const std::function<bool(const Op&)>& trivial) {
  const Topology topology(original);
  Merger merger(topology);
  for (OpId op : topology.order()) {
    // What joined `op` before was as trivial, so the group of `op` is `op` as far as this goes.
    if (!trivial(original.ops[op]) || original.ops[op].tied >= 0) continue;
    const OpId into = merger.neighbour(op);
    if (into >= 0) merger.merge(op, into);
  }
  std::vector<int> group(original.ops.size());
  std::vector<int> number(original.ops.size(), -1);
  int num_groups = 0;
  for (OpId op = 0; op < topology.num_ops(); ++op) {
    int& n = number[merger.find(op)];
    if (n < 0) n = num_groups++;
    group[op] = n;
  }
  return merge_groups(original, group);
}

}  // namespace ductile::graph
