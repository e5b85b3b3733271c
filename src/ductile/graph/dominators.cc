#include "ductile/graph/dominators.h"

#include <algorithm>
#include <span>

namespace ductile::graph {
namespace {

// A forest under a virtual root (node n), with ancestor jumps of skew-binary lengths (Myers 1983).
class Forest {
 public:
  explicit Forest(int n) : root_(n), parent_(n + 1, n), jump_(n + 1, n), depth_(n + 1) {}

  void add(int node, int parent) {
    parent_[node] = parent;
    depth_[node] = depth_[parent] + 1;
    const int j = jump_[parent];
    jump_[node] = depth_[parent] - depth_[j] == depth_[j] - depth_[jump_[j]] ? jump_[j] : parent;
  }

  int common_ancestor(int a, int b) const {
    if (depth_[a] < depth_[b]) std::swap(a, b);
    while (depth_[a] > depth_[b]) a = depth_[jump_[a]] >= depth_[b] ? jump_[a] : parent_[a];
    while (a != b) {
      const bool far = jump_[a] != jump_[b];
      a = far ? jump_[a] : parent_[a];
      b = far ? jump_[b] : parent_[b];
    }
    return a;
  }

  int root() const { return root_; }

 private:
  int root_;
  std::vector<int> parent_, jump_, depth_;
};

// In topological order the immediate dominator is the nearest common ancestor of the
// predecessors in the tree so far.
template <class Row>
std::vector<OpId> dominators(std::span<const OpId> order, bool backwards, const Row& row) {
  const int n = static_cast<int>(order.size());
  Forest forest(n);
  std::vector<OpId> out(n, -1);
  for (int i = 0; i < n; ++i) {
    const OpId op = order[backwards ? n - 1 - i : i];
    int at = -1;
    for (OpId from : row(op)) at = at < 0 ? from : forest.common_ancestor(at, from);
    if (at < 0) at = forest.root();
    forest.add(op, at);
    out[op] = at == forest.root() ? -1 : at;
  }
  return out;
}

}  // namespace

std::vector<OpId> immediate_dominators(const Topology& t) {
  return dominators(t.order(), false, [&](OpId op) { return t.predecessors(op); });
}

std::vector<OpId> immediate_postdominators(const Topology& t) {
  return dominators(t.order(), true, [&](OpId op) { return t.successors(op); });
}

std::vector<OpId> cut_chain(const Topology& t) {
  // In topological order an operator is on every path exactly if no edge, source or sink passes
  // over its position.
  const int n = t.num_ops();
  std::vector<int> change(n + 1);            // of the number of spans that pass over a position
  const auto span = [&](int from, int to) {  // over the positions between, exclusive
    if (to - from > 1) ++change[from + 1], --change[to];
  };
  for (int i = 0; i < n; ++i) {
    const OpId op = t.order()[i];
    for (OpId to : t.successors(op)) span(i, t.position(to));
    if (t.predecessors(op).empty()) span(-1, i);
    if (t.successors(op).empty()) span(i, n);
  }
  std::vector<OpId> chain;
  for (int i = 0, over = 0; i < n; ++i) {
    over += change[i];
    if (over == 0) chain.push_back(t.order()[i]);
  }
  return chain;
}

}  // namespace ductile::graph
