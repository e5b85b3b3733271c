#include "ductile/graph/series_parallel.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

#include "ductile/base/error.h"
#include "ductile/graph/reduce.h"

namespace ductile::graph {
namespace {

using Kind = SpTree::Kind;

constexpr int kNothing = -1;     // the tree of a plain dependency
constexpr int kMaxNesting = 64;  // of islands in islands' surroundings; deeper ones stay whole

struct Arc {
  int from = 0, to = 0;
  int tree = kNothing;
  bool alive = true;
};

// Reduces the arcs between two terminals as far as series and parallel steps go.
class Reducer {
 public:
  Reducer(int num_points, int entry, int exit, SpTree& tree)
      : entry_(entry), exit_(exit), tree_(tree), in_(num_points), out_(num_points) {}

  void add(int from, int to, int tree) {
    const uint64_t key = static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to);
    const auto [at, is_new] = between_.try_emplace(key, static_cast<int>(arcs_.size()));
    if (!is_new && arcs_[at->second].alive) {
      arcs_[at->second].tree = join(Kind::parallel, arcs_[at->second].tree, tree);
      changed_.push_back(from), changed_.push_back(to);
      return;
    }
    const int arc = at->second = static_cast<int>(arcs_.size());
    arcs_.push_back({from, to, tree});
    out_[from].add(arc), in_[to].add(arc);
    changed_.push_back(from), changed_.push_back(to);
  }

  std::vector<Arc> reduce() {
    while (!changed_.empty()) {
      const int point = changed_.back();
      changed_.pop_back();
      if (point == entry_ || point == exit_) continue;
      if (in_[point].count != 1 || out_[point].count != 1) continue;
      const Arc a = remove(in_[point].only), b = remove(out_[point].only);
      add(a.from, b.to, join(Kind::series, a.tree, b.tree));
    }
    std::vector<Arc> rest;
    for (const Arc& arc : arcs_) {
      if (arc.alive) rest.push_back(arc);
    }
    return rest;
  }

 private:
  struct Ends {
    int count = 0;
    int only = 0;  // exclusive or of the arcs: the arc where there is one
    void add(int arc) { ++count, only ^= arc; }
    void remove(int arc) { --count, only ^= arc; }
  };

  Arc remove(int arc) {
    arcs_[arc].alive = false;
    out_[arcs_[arc].from].remove(arc), in_[arcs_[arc].to].remove(arc);
    return arcs_[arc];
  }

  int join(Kind kind, int a, int b) {
    if (a == kNothing) return b;
    if (b == kNothing) return a;
    tree_.nodes.push_back({kind, -1, {a, b}, {}, 0});
    return static_cast<int>(tree_.nodes.size()) - 1;
  }

  int entry_, exit_;
  SpTree& tree_;
  std::vector<Arc> arcs_;
  std::vector<Ends> in_, out_;
  std::vector<int> changed_;
  std::unordered_map<uint64_t, int> between_;
};

// What the reductions left between two points, none of which can be reduced further.
class Resister {
 public:
  explicit Resister(SpTree& tree) : tree_(tree) {}

  int decompose(const std::vector<Arc>& arcs, int entry, int exit, int nesting) {
    if (arcs.size() == 1) return arcs.front().tree;
    if (nesting < kMaxNesting) {
      const Positions p = positions(arcs);
      const std::vector<int> cuts = cut_positions(arcs, p);
      if (cuts.size() > 2) return in_series(arcs, p, cuts, nesting);
      auto parts = side_by_side(arcs, entry, exit);
      if (parts.size() > 1) {
        std::vector<int> children;
        for (const auto& part : parts) {
          children.push_back(decompose(part, entry, exit, nesting + 1));
        }
        return group(Kind::parallel, std::move(children));
      }
    }
    return island(arcs);
  }

 private:
  struct Positions {
    std::unordered_map<int, int> of;  // point -> place in a topological order
    std::vector<int> point;
  };

  static Positions positions(const std::vector<Arc>& arcs) {
    std::map<int, int> local;
    for (const Arc& a : arcs) local[a.from], local[a.to];
    std::vector<int> names;
    for (auto& [point, i] : local) i = static_cast<int>(names.size()), names.push_back(point);
    std::vector<std::pair<OpId, OpId>> edges;
    for (const Arc& a : arcs) edges.emplace_back(local[a.from], local[a.to]);
    const Topology topology(static_cast<int>(names.size()), edges);
    Positions p;
    for (OpId i : topology.order()) {
      p.of[names[i]] = static_cast<int>(p.point.size());
      p.point.push_back(names[i]);
    }
    return p;
  }

  // Places over which no arc leads; the entry's and the exit's are always among them.
  static std::vector<int> cut_positions(const std::vector<Arc>& arcs, const Positions& p) {
    std::vector<int> change(p.point.size() + 1);
    for (const Arc& a : arcs) ++change[p.of.at(a.from) + 1], --change[p.of.at(a.to)];
    std::vector<int> cuts;
    int over = 0;
    for (size_t i = 0; i < p.point.size(); ++i) {
      over += change[i];
      if (over == 0) cuts.push_back(static_cast<int>(i));
    }
    return cuts;
  }

  int in_series(const std::vector<Arc>& arcs, const Positions& p, const std::vector<int>& cuts,
                int nesting) {
    std::vector<std::vector<Arc>> parts(cuts.size() - 1);
    for (const Arc& a : arcs) {
      const auto at = std::upper_bound(cuts.begin(), cuts.end(), p.of.at(a.from));
      parts[static_cast<size_t>(at - cuts.begin()) - 1].push_back(a);
    }
    std::vector<int> children;
    for (size_t i = 0; i < parts.size(); ++i) {
      children.push_back(decompose(parts[i], p.point[cuts[i]], p.point[cuts[i + 1]], nesting + 1));
    }
    return group(Kind::series, std::move(children));
  }

  // The arcs by connected part of what remains without the terminals.
  static std::vector<std::vector<Arc>> side_by_side(const std::vector<Arc>& arcs, int entry,
                                                    int exit) {
    std::unordered_map<int, int> parent;
    const auto find = [&](int x) {
      parent.try_emplace(x, x);
      while (parent[x] != x) x = parent[x] = parent[parent[x]];
      return x;
    };
    const auto is_inner = [&](int x) { return x != entry && x != exit; };
    for (const Arc& a : arcs) {
      if (is_inner(a.from) && is_inner(a.to)) parent[find(a.from)] = find(a.to);
    }
    std::map<int, std::vector<Arc>> parts;  // a plain arc from entry to exit: under -1
    for (const Arc& a : arcs) {
      const int inner = is_inner(a.from) ? a.from : a.to;
      parts[is_inner(inner) ? find(inner) : -1].push_back(a);
    }
    std::vector<std::vector<Arc>> out;
    for (auto& [root, part] : parts) out.push_back(std::move(part));
    return out;
  }

  int island(const std::vector<Arc>& arcs) {
    const Positions p = positions(arcs);
    SpTree::Node node{Kind::island, -1, {}, {}, static_cast<int>(p.point.size())};
    for (const Arc& a : arcs) {
      node.children.push_back(a.tree);
      node.ends.emplace_back(p.of.at(a.from), p.of.at(a.to));
    }
    tree_.nodes.push_back(std::move(node));
    return static_cast<int>(tree_.nodes.size()) - 1;
  }

  int group(Kind kind, std::vector<int> children) {
    std::erase(children, kNothing);
    if (children.empty()) return kNothing;
    if (children.size() == 1) return children.front();
    tree_.nodes.push_back({kind, -1, std::move(children), {}, 0});
    return static_cast<int>(tree_.nodes.size()) - 1;
  }

  SpTree& tree_;
};

// The same tree with series in series and parallel in parallel taken together, and only what the
// root reaches. No recursion: a chain is as deep as it is long.
SpTree flatten(const SpTree& deep) {
  SpTree flat;
  struct Frame {
    int node;
    size_t next = 0;           // entry of `pending` to do
    std::vector<int> pending;  // children, those of like kind spliced in
    std::vector<int> done;
  };
  const auto open = [&](int node) {
    Frame frame{node, 0, {}, {}};
    const SpTree::Node& n = deep.nodes[node];
    if (n.kind != Kind::series && n.kind != Kind::parallel) {
      frame.pending = n.children;
      return frame;
    }
    std::vector<int> stack(n.children.rbegin(), n.children.rend());
    while (!stack.empty()) {
      const int child = stack.back();
      stack.pop_back();
      const SpTree::Node& c = deep.nodes[child];
      if (c.kind == n.kind) {
        stack.insert(stack.end(), c.children.rbegin(), c.children.rend());
      } else {
        frame.pending.push_back(child);
      }
    }
    return frame;
  };
  std::vector<Frame> frames{open(deep.root)};
  int result = -1;
  while (!frames.empty()) {
    Frame& frame = frames.back();
    if (frame.next < frame.pending.size()) {
      const int child = frame.pending[frame.next++];
      if (child == kNothing) {
        frame.done.push_back(kNothing);
      } else {
        frames.push_back(open(child));
      }
      continue;
    }
    SpTree::Node node = deep.nodes[frame.node];
    node.children = std::move(frame.done);
    flat.nodes.push_back(std::move(node));
    result = static_cast<int>(flat.nodes.size()) - 1;
    frames.pop_back();
    if (!frames.empty()) frames.back().done.push_back(result);
  }
  flat.root = result;
  flat.residual_edges = deep.residual_edges;
  return flat;
}

}  // namespace

SpTree series_parallel(int num_ops, const std::vector<std::pair<OpId, OpId>>& reduced_edges) {
  DUCTILE_CHECK(num_ops > 0);
  SpTree tree;
  std::vector<char> has_in(num_ops), has_out(num_ops);
  for (const auto& [from, to] : reduced_edges) has_out[from] = has_in[to] = 1;
  const int entry = 2 * num_ops, exit = entry + 1;
  Reducer reducer(2 * num_ops + 2, entry, exit, tree);
  for (OpId op = 0; op < num_ops; ++op) {
    tree.nodes.push_back({Kind::op, op, {}, {}, 0});
    if (!has_in[op]) reducer.add(entry, 2 * op, kNothing);
    if (!has_out[op]) reducer.add(2 * op + 1, exit, kNothing);
  }
  for (OpId op = 0; op < num_ops; ++op) reducer.add(2 * op, 2 * op + 1, op);
  for (const auto& [from, to] : reduced_edges) reducer.add(2 * from + 1, 2 * to, kNothing);
  const std::vector<Arc> rest = reducer.reduce();
  if (rest.size() > 1) tree.residual_edges = static_cast<int>(rest.size());
  tree.root = Resister(tree).decompose(rest, entry, exit, 0);
  return flatten(tree);
}

SpTree series_parallel(const Graph& graph) {
  return series_parallel(static_cast<int>(graph.ops.size()), transitive_reduction(Topology(graph)));
}

std::vector<OpId> ops_below(const SpTree& tree, int node) {
  std::vector<OpId> out;
  std::vector<int> stack{node};
  while (!stack.empty()) {
    const int at = stack.back();
    stack.pop_back();
    if (at == kNothing) continue;
    const SpTree::Node& n = tree.nodes[at];
    if (n.kind == Kind::op) out.push_back(n.op);
    stack.insert(stack.end(), n.children.begin(), n.children.end());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace ductile::graph
