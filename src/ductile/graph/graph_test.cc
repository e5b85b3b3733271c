#include "ductile/graph/graph.h"

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/dominators.h"
#include "ductile/graph/downsets.h"
#include "ductile/graph/op_set.h"
#include "ductile/graph/reduce.h"
#include "ductile/graph/series_parallel.h"

namespace ductile::graph {
namespace {

Graph with_edges(int n, const std::vector<std::pair<OpId, OpId>>& edges) {
  Graph g;
  for (int i = 0; i < n; ++i) g.ops.emplace_back().name = fmt::format("op{}", i);
  for (const auto& [a, b] : edges) g.edges.push_back({a, b});
  return g;
}

// Edges a -> b with perm[a] < perm[b], so that numbers are no topological order.
Graph random_graph(uint64_t seed, int max_ops) {
  Rng rng(seed, 77);
  const int n = 1 + static_cast<int>(rng.below(static_cast<uint32_t>(max_ops)));
  std::vector<OpId> name(n);
  for (int i = 0; i < n; ++i) name[i] = i;
  for (int i = n - 1; i > 0; --i) std::swap(name[i], name[rng.below(i + 1)]);
  const double density = rng.uniform(0.0, 0.6);
  std::vector<std::pair<OpId, OpId>> edges;
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) {
      if (rng.uniform() < density) edges.emplace_back(name[i], name[j]);
    }
  }
  return with_edges(n, edges);
}

// The slow twin: who reaches whom, over at least one edge.
std::vector<std::vector<char>> reachability(const Graph& g) {
  const int n = static_cast<int>(g.ops.size());
  std::vector<std::vector<char>> reach(n, std::vector<char>(n));
  for (const Edge& e : g.edges) reach[e.from][e.to] = 1;
  for (int k = 0; k < n; ++k) {
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) reach[i][j] |= reach[i][k] & reach[k][j];
    }
  }
  return reach;
}

// All downsets, by trying each of the 2^n sets.
size_t count_downsets_slowly(const Graph& g) {
  const int n = static_cast<int>(g.ops.size());
  size_t count = 0;
  for (uint32_t set = 0; set < (1u << n); ++set) {
    bool is_downset = true;
    for (const Edge& e : g.edges) is_downset &= !(set >> e.to & 1) || (set >> e.from & 1);
    count += is_downset;
  }
  return count;
}

TEST(Topology, OrdersOperatorsAfterTheirPredecessors) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph g = random_graph(seed, 20);
    const Topology t(g);
    ASSERT_EQ(t.order().size(), g.ops.size());
    for (const Edge& e : g.edges) EXPECT_LT(t.position(e.from), t.position(e.to));
    size_t edges = 0;
    for (OpId op = 0; op < t.num_ops(); ++op) {
      for (OpId to : t.successors(op)) {
        ++edges;
        const auto back = t.predecessors(to);
        EXPECT_NE(std::find(back.begin(), back.end(), op), back.end());
      }
    }
    EXPECT_EQ(edges, g.edges.size());
  }
}

TEST(Check, NamesTheOperatorsOfACycle) {
  Graph g = with_edges(4, {{0, 1}, {1, 2}, {2, 3}, {3, 1}});
  std::string text;
  EXPECT_EQ(testing::code_of([&] { check(g); }, &text), ErrorCode::invalid_argument);
  EXPECT_NE(text.find("cycle: \"op"), std::string::npos) << text;
  for (const char* name : {"op1", "op2", "op3"}) EXPECT_NE(text.find(name), std::string::npos);
  EXPECT_EQ(text.find("op0"), std::string::npos) << text;
}

TEST(Check, NamesOperatorAndFieldOfAWrongFigure) {
  const auto expect = [](auto change, const char* what) {
    Graph g = with_edges(2, {{0, 1}});
    change(g);
    std::string text;
    EXPECT_EQ(testing::code_of([&] { check(g); }, &text), ErrorCode::invalid_argument);
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  expect([](Graph& g) { g.ops[1].cost.forward.per_sample = -1; }, "\"op1\": forward is -1");
  expect([](Graph& g) { g.ops[1].cost.backward_weight.fixed = NAN; }, "backward_weight is nan");
  expect([](Graph& g) { g.ops[0].cost.parameter_bytes = 1e30; }, "\"op0\": parameter_bytes");
  expect([](Graph& g) { g.ops[0].max_split = 0; }, "max_split is 0");
  expect([](Graph& g) { g.ops[1].name = "op0"; }, "two operators are named \"op0\"");
  expect([](Graph& g) { g.ops[1].name = "a\xffz"; }, "operator 1: name is not UTF-8");
  expect([](Graph& g) { g.ops[1].kind = "\xc0\x80"; }, "\"op1\": kind is not UTF-8");
  expect([](Graph& g) { g.ops[1].name.clear(); }, "operator 1 has no name");
  expect([](Graph& g) { g.edges[0].to = 7; }, "joins operators 0 and 7");
  expect([](Graph& g) { g.edges[0].to = 0; }, "\"op0\" feeds itself");
  expect([](Graph& g) { g.edges[0].bytes = -2; }, "\"op0\" -> \"op1\": bytes is -2");
  expect([](Graph& g) { g.ops.clear(), g.edges.clear(); }, "no operators");
  expect([](Graph& g) { g.ops[0].shape = {3, 0}; }, "shape");
  expect([](Graph& g) { g.edges.push_back({0, 1, 0, 5}); }, "another edge says");
  expect([](Graph& g) { g.ops[0].variants.assign(2, {2, false, {}}); }, "two variants");
  expect([](Graph& g) { g.state_factor = -1; }, "state_factor");
}

TEST(Check, OnlyNeighboursThatNobodyComesBetweenAreFused) {
  using Edges = std::vector<std::pair<OpId, OpId>>;
  const auto fused = [](const Edges& edges, const std::vector<size_t>& which) {
    Graph g = with_edges(4, edges);
    for (const size_t e : which) g.edges[e].fused = true;
    return g;
  };
  EXPECT_NO_THROW(check(fused({{0, 1}, {1, 2}, {2, 3}}, {0, 2})));
  const auto refused = [&](const Edges& edges, const std::vector<size_t>& which) {
    const std::string text = testing::text_of([&] { check(fused(edges, which)); });
    EXPECT_NE(text.find("is fused"), std::string::npos) << text;
  };
  refused({{0, 1}, {1, 2}, {2, 3}}, {0, 1});  // one is in two pairs
  refused({{0, 1}, {0, 2}, {2, 3}}, {0});     // another one reads the first
  refused({{0, 2}, {1, 2}, {2, 3}}, {1});     // the second reads another one
  refused({{0, 2}, {2, 1}, {1, 3}}, {0});     // another one stands between them
}

TEST(Cost, SplitAndRecomputeAreDerivedUnlessMeasured) {
  Op op;
  op.name = "a";
  op.cost.forward = {1, 2};
  op.cost.backward_input = {1, 4};
  op.cost.parameter_bytes = 80;
  op.cost.activation_bytes = 16;
  op.output_bytes = 8;
  EXPECT_FALSE(allows(op, 2, false));
  op.max_split = 4;
  op.recomputable = true;
  EXPECT_TRUE(allows(op, 4, true));
  EXPECT_FALSE(allows(op, 3, false));
  EXPECT_FALSE(allows(op, 8, false));
  const OpCost split = cost_of(op, 4, false, 2);
  EXPECT_EQ(split.forward, (Affine{1, 0.5}));
  EXPECT_EQ(split.parameter_bytes, 20);
  EXPECT_EQ(split.activation_bytes, 4);
  EXPECT_EQ(split.tensor_forward_bytes, 12);  // 2 x 3/4 x 8
  const OpCost again = cost_of(op, 1, true, 2);
  EXPECT_EQ(again.backward_input, (Affine{2, 6}));
  EXPECT_EQ(again.activation_bytes, 2);
  EXPECT_EQ(again.workspace_bytes.per_sample, 14);
  OpVariant measured{3, true, {}};
  measured.cost.fixed_bytes = 5;
  op.variants.push_back(measured);
  EXPECT_TRUE(allows(op, 3, true));
  EXPECT_FALSE(allows(op, 3, false));
  EXPECT_EQ(cost_of(op, 3, true, 2), measured.cost);
}

TEST(InputBytes, CountsATensorReadTwiceByOneOperatorOnce) {
  Graph g = with_edges(3, {});
  g.edges = {{0, 2, 0, 10}, {0, 2, 0, 10}, {0, 2, 1, 3}, {1, 2, 0, 5}};
  EXPECT_EQ(input_bytes(g), (std::vector<double>{0, 0, 18}));
}

TEST(TransitiveReduction, KeepsExactlyTheEdgesThatNoPathReplaces) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Graph g = random_graph(seed, 16);
    const auto reach = reachability(g);
    std::vector<std::pair<OpId, OpId>> expected;
    const int n = static_cast<int>(g.ops.size());
    for (OpId a = 0; a < n; ++a) {
      for (OpId b = 0; b < n; ++b) {
        bool direct = false, detour = false;
        for (const Edge& e : g.edges) direct |= e.from == a && e.to == b;
        for (OpId k = 0; k < n; ++k) detour |= reach[a][k] && reach[k][b];
        if (direct && !detour) expected.emplace_back(a, b);
      }
    }
    EXPECT_EQ(transitive_reduction(Topology(g)), expected) << "seed " << seed;
  }
}

TEST(Dominators, AreTheLastOfThoseOnAllPaths) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Graph g = random_graph(seed, 12);
    const Topology t(g);
    const int n = t.num_ops();
    // Dominators by removal: which operators does no source reach without x?
    const auto reached_without = [&](OpId x, bool backwards) {
      std::vector<char> reached(n);
      std::vector<OpId> order(t.order().begin(), t.order().end());
      if (backwards) std::reverse(order.begin(), order.end());
      for (OpId op : order) {
        if (op == x) continue;
        const auto row = backwards ? t.successors(op) : t.predecessors(op);
        bool in = row.empty();
        for (OpId from : row) in |= reached[from] != 0;
        reached[op] = in;
      }
      return reached;
    };
    const auto idom = immediate_dominators(t), ipdom = immediate_postdominators(t);
    std::vector<char> on_all(n, 1);
    std::vector<OpId> last(n, -1), first(n, -1);
    for (OpId x : t.order()) {
      const auto reached = reached_without(x, false);
      for (OpId v = 0; v < n; ++v) {
        if (v != x && !reached[v]) last[v] = x;
        if (t.successors(v).empty() && v != x && reached[v]) on_all[x] = 0;
      }
    }
    for (int i = n - 1; i >= 0; --i) {
      const OpId x = t.order()[i];
      const auto reached = reached_without(x, true);
      for (OpId v = 0; v < n; ++v) {
        if (v != x && !reached[v]) first[v] = x;
      }
    }
    EXPECT_EQ(idom, last) << "seed " << seed;
    EXPECT_EQ(ipdom, first) << "seed " << seed;
    std::vector<OpId> chain;
    for (OpId x : t.order()) {
      if (on_all[x]) chain.push_back(x);
    }
    EXPECT_EQ(cut_chain(t), chain) << "seed " << seed;
  }
}

TEST(Downsets, AreAllAndEachOnce) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph g = random_graph(seed, 10);
    const Topology t(g);
    const size_t expected = count_downsets_slowly(g);
    const auto sets = downsets(t, expected);
    ASSERT_TRUE(sets.has_value());
    EXPECT_EQ(sets->size(), expected);
    EXPECT_EQ(count_downsets(t, 1 << 20), expected);
    EXPECT_FALSE(downsets(t, expected - 1).has_value());
    for (size_t i = 0; i < sets->size(); ++i) {
      if (i > 0) {
        EXPECT_LE((*sets)[i - 1].size(), (*sets)[i].size());
      }
      for (const Edge& e : g.edges) {
        EXPECT_TRUE(!(*sets)[i].contains(e.to) || (*sets)[i].contains(e.from));
      }
      for (size_t j = 0; j < i; ++j) EXPECT_FALSE((*sets)[i] == (*sets)[j]);
    }
  }
}

TEST(OpSet, IsASet) {
  OpSet a(130), b(130);
  for (OpId op : {0, 63, 64, 129}) a.insert(op);
  for (OpId op : {63, 100}) b.insert(op);
  EXPECT_EQ((a | b).size(), 5);
  EXPECT_EQ((a & b).to_vector(), std::vector<OpId>{63});
  EXPECT_EQ((a - b).to_vector(), (std::vector<OpId>{0, 64, 129}));
  EXPECT_TRUE((a & b).is_subset_of(b));
  EXPECT_FALSE(a.is_subset_of(b));
  a.erase(129);
  EXPECT_FALSE(a.contains(129));
  EXPECT_TRUE((a - a).empty());
}

// What a tree says must be what the edges say: which operators precede which.
class Precedence {
 public:
  Precedence(const SpTree& tree, int n) : tree_(tree), before_(n, std::vector<char>(n)) {
    visit(tree.root);
  }
  const std::vector<std::vector<char>>& before() const { return before_; }

 private:
  void visit(int node) {
    if (node < 0) return;
    const SpTree::Node& n = tree_.nodes[node];
    for (int child : n.children) visit(child);
    if (n.kind == SpTree::Kind::series) {
      for (size_t i = 0; i < n.children.size(); ++i) {
        for (size_t j = i + 1; j < n.children.size(); ++j) order(n.children[i], n.children[j]);
      }
    }
    if (n.kind == SpTree::Kind::island) {
      std::vector<std::vector<char>> reach(n.num_points, std::vector<char>(n.num_points));
      for (int p = 0; p < n.num_points; ++p) reach[p][p] = 1;
      for (int from = n.num_points - 1; from >= 0; --from) {
        for (const auto& [a, b] : n.ends) {
          EXPECT_LT(a, b);
          if (a != from) continue;
          for (int p = 0; p < n.num_points; ++p) reach[from][p] |= reach[b][p];
        }
      }
      for (size_t i = 0; i < n.children.size(); ++i) {
        for (size_t j = 0; j < n.children.size(); ++j) {
          if (n.children[i] < 0 || n.children[j] < 0) continue;
          if (reach[n.ends[i].second][n.ends[j].first]) order(n.children[i], n.children[j]);
        }
      }
    }
  }
  void order(int first, int second) {
    for (OpId a : ops_below(tree_, first)) {
      for (OpId b : ops_below(tree_, second)) before_[a][b] = 1;
    }
  }

  const SpTree& tree_;
  std::vector<std::vector<char>> before_;
};

TEST(SeriesParallel, TreesSayWhatTheEdgesSay) {
  int pure = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Graph g = random_graph(seed, 14);
    const int n = static_cast<int>(g.ops.size());
    const SpTree tree = series_parallel(g);
    EXPECT_EQ(ops_below(tree, tree.root).size(), g.ops.size());
    EXPECT_EQ(Precedence(tree, n).before(), reachability(g)) << "seed " << seed;
    bool has_island = false;
    for (size_t i = 0; i < tree.nodes.size(); ++i) {
      const SpTree::Node& node = tree.nodes[i];
      has_island |= node.kind == SpTree::Kind::island;
      for (int child : node.children) {
        EXPECT_LT(child, static_cast<int>(i));
        if (child >= 0 && node.kind != SpTree::Kind::island) {
          EXPECT_NE(tree.nodes[child].kind, node.kind);
        }
      }
    }
    EXPECT_EQ(has_island, !tree.is_series_parallel());
    pure += tree.is_series_parallel();
  }
  EXPECT_GT(pure, 100);
  EXPECT_LT(pure, 900);
}

TEST(SeriesParallel, TheForbiddenShapeIsAnIslandWithinSeries) {
  // a -> {b, c} -> "N" -> {d, e} -> f: b before d and e, c before e only.
  const Graph g = with_edges(6, {{0, 1}, {0, 2}, {1, 3}, {1, 4}, {2, 4}, {3, 5}, {4, 5}});
  const SpTree tree = series_parallel(g);
  EXPECT_FALSE(tree.is_series_parallel());
  const SpTree::Node& root = tree.nodes[tree.root];
  ASSERT_EQ(root.kind, SpTree::Kind::series);
  ASSERT_EQ(root.children.size(), 3u);
  EXPECT_EQ(tree.nodes[root.children[0]].op, 0);
  EXPECT_EQ(tree.nodes[root.children[1]].kind, SpTree::Kind::island);
  EXPECT_EQ(tree.nodes[root.children[2]].op, 5);
}

TEST(SeriesParallel, AChainOfAHundredThousandIsOneSeries) {
  std::vector<std::pair<OpId, OpId>> edges;
  const int n = 100'000;
  for (int i = 0; i + 1 < n; ++i) edges.emplace_back(i, i + 1);
  const SpTree tree = series_parallel(n, edges);
  EXPECT_EQ(tree.nodes[tree.root].children.size(), static_cast<size_t>(n));
}

TEST(Contract, KeepsTheGraphAcyclicAndTheSums) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Graph g = random_graph(seed, 14);
    Rng rng(seed, 78);
    double seconds = 0, bytes = 0;
    for (Op& op : g.ops) {
      if (rng.below(2) == 0) {
        op.cost.forward.per_sample = rng.below(100);
        op.cost.parameter_bytes = rng.below(100);
      }
      op.cost.activation_bytes = rng.below(10);
      seconds += op.cost.forward.per_sample;
      bytes += op.cost.activation_bytes;
    }
    const Contraction c = contract(g, is_free);  // calls check(): no cycle
    size_t members = 0;
    for (size_t i = 0; i < c.members.size(); ++i) {
      members += c.members[i].size();
      seconds -= c.graph.ops[i].cost.forward.per_sample;
      bytes -= c.graph.ops[i].cost.activation_bytes;
    }
    EXPECT_EQ(members, g.ops.size());
    EXPECT_EQ(seconds, 0);
    EXPECT_EQ(bytes, 0);
    // A free operator that is left has nobody to join.
    for (size_t i = 0; i < c.graph.ops.size(); ++i) {
      if (!is_free(c.graph.ops[i])) continue;
      for (const Edge& e : c.graph.edges) {
        EXPECT_TRUE(e.from != static_cast<OpId>(i) && e.to != static_cast<OpId>(i));
      }
    }
  }
}

TEST(Contract, ATensorReadByTwoMembersStaysOneEdge) {
  Graph g = with_edges(3, {{0, 1}, {0, 2}, {1, 2}});
  for (Edge& e : g.edges) e.bytes = 8;
  g.ops[0].cost.forward.per_sample = 1;
  g.ops[2].cost.forward.per_sample = 1;
  const Contraction c = contract(g, is_free);
  ASSERT_EQ(c.graph.ops.size(), 2u);
  ASSERT_EQ(c.graph.edges.size(), 1u);
  EXPECT_EQ(c.members[1], (std::vector<OpId>{1, 2}));
}

TEST(Contract, MergedVariantsAreThoseThatAllMembersAllow) {
  Graph g = with_edges(2, {{0, 1}});
  for (Op& op : g.ops) op.cost.forward.per_sample = 8, op.recomputable = true;
  g.ops[0].max_split = 4;
  g.ops[1].max_split = 2;
  const Contraction c = merge_groups(g, {0, 0});
  const Op& op = c.graph.ops[0];
  EXPECT_TRUE(allows(op, 2, true));
  EXPECT_TRUE(allows(op, 1, true));
  EXPECT_FALSE(allows(op, 4, false));
  EXPECT_EQ(cost_of(op, 2, false, 0).forward.per_sample, 8);
}

}  // namespace
}  // namespace ductile::graph
