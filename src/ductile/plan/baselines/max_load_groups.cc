#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include "ductile/base/error.h"
#include "ductile/plan/baselines/max_load_groups_impl.h"

namespace ductile::plan {

using graph::OpId;
using graph::OpSet;

namespace {

class Union {
 public:
  explicit Union(size_t n) : to_(n) { std::iota(to_.begin(), to_.end(), 0); }
  int find(int a) {
    while (to_[a] != a) a = to_[a] = to_[to_[a]];
    return a;
  }
  void join(int a, int b) { to_[find(a)] = find(b); }

 private:
  std::vector<int> to_;
};

// Joins what lies on a common cycle (Tarjan 1972, without recursion).
void join_cycles(int num, const std::set<std::pair<int, int>>& edges, Union& sets) {
  std::vector<std::vector<int>> next(num);
  for (const auto& [from, to] : edges) next[from].push_back(to);
  std::vector<int> index(num, -1), low(num, 0), stack;
  std::vector<bool> on_stack(num, false);
  int count = 0;
  struct Frame {
    int v;
    size_t child;
  };
  std::vector<Frame> frames;
  for (int root = 0; root < num; ++root) {
    if (index[root] >= 0) continue;
    frames.push_back({root, 0});
    while (!frames.empty()) {
      Frame& f = frames.back();
      const int v = f.v;
      if (f.child == 0 && index[v] < 0) {
        index[v] = low[v] = count++;
        stack.push_back(v);
        on_stack[v] = true;
      }
      if (f.child < next[v].size()) {
        const int w = next[v][f.child++];
        if (index[w] < 0) {
          frames.push_back({w, 0});
        } else if (on_stack[w]) {
          low[v] = std::min(low[v], index[w]);
        }
        continue;
      }
      if (low[v] == index[v]) {
        for (int w = -1; w != v;) {
          w = stack.back();
          stack.pop_back();
          on_stack[w] = false;
          sets.join(w, v);
        }
      }
      frames.pop_back();
      if (!frames.empty()) low[frames.back().v] = std::min(low[frames.back().v], low[v]);
    }
  }
}

}  // namespace

MaxLoadGroups max_load_groups(const MaxLoadProblem& problem) {
  const auto& nodes = problem.nodes;
  const int num = static_cast<int>(nodes.size());
  for (const auto& [from, to] : problem.edges) {
    if (from < 0 || from >= num || to < 0 || to >= num || from == to) {
      fail(ErrorCode::invalid_argument, "edge {} -> {}: there are {} nodes", from, to, num);
    }
  }
  Union sets(nodes.size());
  std::unordered_map<int64_t, int> of_colour;
  std::unordered_map<int64_t, bool> has_forward;
  for (int v = 0; v < num; ++v) {
    if (nodes[v].colour < 0) continue;
    sets.join(v, of_colour.try_emplace(nodes[v].colour, v).first->second);
    has_forward[nodes[v].colour] |= !nodes[v].backward;
  }
  // A backward node without a forward one takes its place in the forward graph from its
  // neighbours, the other way round.
  const auto orphan = [&](int v) {
    return nodes[v].backward && (nodes[v].colour < 0 || !has_forward[nodes[v].colour]);
  };
  std::vector<std::pair<int, int>> order;  // of nodes, in the forward graph
  for (const auto& [from, to] : problem.edges) {
    if (!nodes[from].backward && !nodes[to].backward) {
      order.emplace_back(from, to);
    } else if (nodes[from].backward && nodes[to].backward && (orphan(from) || orphan(to))) {
      order.emplace_back(to, from);
    }
  }
  const auto between_sets = [&] {
    std::set<std::pair<int, int>> out;
    for (const auto& [from, to] : order) {
      const int a = sets.find(from), b = sets.find(to);
      if (a != b) out.emplace(a, b);
    }
    return out;
  };
  join_cycles(num, between_sets(), sets);

  // What takes no time and hangs on one neighbour alone goes where that goes.
  for (bool again = true; again;) {
    again = false;
    std::map<int, std::set<int>> neighbours;
    std::map<int, bool> matters;
    for (int v = 0; v < num; ++v) {
      matters[sets.find(v)] |=
          nodes[v].accelerator_time + nodes[v].cpu_time > 0 || !nodes[v].on_accelerator;
    }
    for (const auto& [from, to] : problem.edges) {
      const int a = sets.find(from), b = sets.find(to);
      if (a == b) continue;
      neighbours[a].insert(b);
      neighbours[b].insert(a);
    }
    std::set<int> used;
    for (const auto& [v, others] : neighbours) {
      if (others.size() != 1 || matters[v]) continue;
      const int other = *others.begin();
      if (used.contains(v) || used.contains(other)) continue;
      used.insert({v, other});
      sets.join(v, other);
      again = true;
    }
  }

  MaxLoadGroups out;
  std::vector<int> number(nodes.size(), -1);
  for (int v = 0; v < num; ++v) {
    int& n = number[sets.find(v)];
    if (n < 0) {
      n = static_cast<int>(out.groups.size());
      out.groups.emplace_back();
    }
    MaxLoadGroups::Group& g = out.groups[n];
    g.nodes.push_back(v);
    g.accelerator_time += nodes[v].accelerator_time;
    g.cpu_time += nodes[v].cpu_time;
    g.bytes += nodes[v].bytes;
    g.on_accelerator = g.on_accelerator && nodes[v].on_accelerator;
  }
  for (const auto& [a, b] : between_sets()) out.edges.emplace_back(number[a], number[b]);
  std::vector<std::vector<int>> readers(nodes.size());
  for (const auto& [from, to] : problem.edges) readers[from].push_back(to);
  for (int v = 0; v < num; ++v) {
    if (nodes[v].transfer <= 0) continue;
    OpSet groups(static_cast<int>(out.groups.size()));
    groups.insert(number[sets.find(v)]);
    for (int w : readers[v]) groups.insert(number[sets.find(w)]);
    if (groups.size() < 2) continue;
    const auto same = std::find_if(out.nets.begin(), out.nets.end(),
                                   [&](const auto& net) { return net.groups == groups; });
    if (same != out.nets.end()) {
      same->cost += nodes[v].transfer;
    } else {
      out.nets.push_back({std::move(groups), nodes[v].transfer});
    }
  }
  return out;
}

double max_load(const MaxLoadProblem& problem, const std::vector<MaxLoadPart>& parts) {
  double most = 0;
  for (const MaxLoadPart& part : parts) {
    const std::set<int> inside(part.nodes.begin(), part.nodes.end());
    double load = 0, bytes = 0;
    for (int v : part.nodes) {
      const MaxLoadProblem::Node& n = problem.nodes[v];
      load += part.accelerator ? n.accelerator_time : n.cpu_time;
      bytes += n.bytes;
      if (part.accelerator && !n.on_accelerator) return std::numeric_limits<double>::infinity();
    }
    if (part.accelerator) {
      if (bytes > problem.memory) return std::numeric_limits<double>::infinity();
      std::set<int> crossing;
      for (const auto& [from, to] : problem.edges) {
        if (inside.contains(from) != inside.contains(to)) crossing.insert(from);
      }
      for (int v : crossing) load += problem.nodes[v].transfer;
    }
    most = std::max(most, load);
  }
  return most;
}

}  // namespace ductile::plan
