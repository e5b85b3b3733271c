#include "ductile/plan/baselines/baselines.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/downsets.h"
#include "ductile/graph/series_parallel.h"
#include "ductile/plan/baselines/sequential_search_impl.h"
#include "ductile/plan/testing/brute_force.h"

namespace ductile::plan {
namespace {

using testing::code_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const Clock::time_point kNever = Clock::time_point::max();

// What a stage costs, from its operators alone.
struct Price {
  const graph::Graph& graph;
  Island island;
  int64_t b;
  int64_t batch;
  std::vector<double> inputs = graph::input_bytes(graph);

  StageCost operator()(const std::vector<OpId>& ops, int r, int t, bool recompute) const {
    bool split = t == 1;
    std::vector<OpId> again;
    for (OpId v : ops) {
      split = split || graph::allows(graph.ops[v], t, false);
      const int own = graph::allows(graph.ops[v], t, false) ? t : 1;
      if (recompute && graph::allows(graph.ops[v], own, true)) again.push_back(v);
    }
    if (!split) return {};
    return stage_cost(stage_sums(graph, ops, t, again, inputs), boundary(graph, ops),
                      {r, t, 0, false}, graph, island, b, batch, Objective::throughput);
  }
};

// The slowest stage of the best chain of stages through these downsets, from the end of the model
// to its start, without a table.
double best_chain(const Price& price, const std::vector<graph::OpSet>& sets,
                  const std::vector<int>& tensors, bool recompute) {
  double best = kInfinity;
  const std::function<void(size_t, int, int, double)> extend = [&](size_t rest, int devices,
                                                                   int degrees, double slowest) {
    if (slowest >= best) return;
    if (rest == 0) {
      best = slowest;
      return;
    }
    for (size_t to = 0; to < rest; ++to) {
      if (!sets[to].is_subset_of(sets[rest])) continue;
      const std::vector<OpId> ops = (sets[rest] - sets[to]).to_vector();
      for (int t : tensors) {
        for (int r = 1; r <= price.b && devices + r * t <= price.island.devices; ++r) {
          if (price.b % r != 0) continue;
          for (int again = 0; again <= (recompute ? 1 : 0); ++again) {
            const StageCost c = price(ops, r, t, again == 1);
            const int64_t held =
                std::min<int64_t>(price.batch / price.b, (degrees + 2 * r - 1) / r);
            if (c.most < held) continue;
            extend(to, devices + r * t, degrees + r, std::max(slowest, c.tau));
          }
        }
      }
    }
  };
  extend(sets.size() - 1, 0, 0, 0);
  return best;
}

TEST(Baselines, TheChainPlannersEqualAWalkOfAllChains) {
  int found = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const SmallCase c = small_case(seed);
    if (c.graph.ops.size() > 6 || c.devices.size() > 4) continue;
    const Island island = island_of(c.devices);
    const graph::Topology topology(c.graph);
    const int64_t b =
        c.options.micro_batches.empty() ? c.options.batch : c.options.micro_batches[0];
    const Price price{c.graph, island, b, c.options.batch};
    const auto compare = [&](const SequentialResult& r, double best) {
      ASSERT_EQ(r.found, std::isfinite(best));
      if (!r.found) return;
      ++found;
      ASSERT_NEAR(r.seconds_per_sample, best, 1e-5 * best);  // its table holds single precision
      ASSERT_LE(r.plan.num_devices(), island.devices);
    };
    // PipeDream: the cuts of one order, replicas alone.
    const std::vector<OpId> order = depth_first_order(c.graph);
    std::vector<graph::OpSet> cuts(1, graph::OpSet(topology.num_ops()));
    for (OpId v : order) {
      cuts.push_back(cuts.back());
      cuts.back().insert(v);
    }
    compare(sequential_search(SearchSpace::of_order(c.graph, order, 100), island, c.options, b,
                              false, kNever),
            best_chain(price, cuts, {1}, false));
    // Piper: all downsets, splits and recomputation as far as they are asked for.
    SearchSpace space;
    ASSERT_TRUE(SearchSpace::all_downsets(c.graph, 1'000'000, space));
    std::vector<int> tensors = {1};
    for (const graph::Op& op : c.graph.ops) {
      if (op.max_split >= 2 && c.options.split) tensors = {1, 2};
    }
    compare(sequential_search(space, island, c.options, b, true, kNever),
            best_chain(price, *graph::downsets(topology, 10'000), tensors, c.options.recompute));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(found, 50);
}

// GraphPipe's recursion without table or target: every (samples in flight at the source, slowest
// stage) there is.
class AllSplits {
 public:
  struct Value {
    int64_t samples;
    double slowest;
  };
  AllSplits(const Price& price, const graph::SpTree& tree) : price_(price), tree_(tree) {}

  std::vector<Value> values(const std::vector<int>& run, bool series, int d, int64_t after) {
    if (run.size() == 1) {
      const graph::SpTree::Node& node = tree_.nodes[run[0]];
      if (node.kind != graph::SpTree::Kind::op) {
        std::vector<int> children;
        for (int child : node.children) {
          if (child >= 0) children.push_back(child);
        }
        return values(children, node.kind == graph::SpTree::Kind::series, d, after);
      }
    }
    std::vector<Value> out;
    if ((d & (d - 1)) == 0 && price_.b % d == 0) {
      std::vector<OpId> ops;
      for (int child : run) {
        const std::vector<OpId> below = graph::ops_below(tree_, child);
        ops.insert(ops.end(), below.begin(), below.end());
      }
      std::sort(ops.begin(), ops.end());
      const StageCost c = price_(ops, d, 1, false);
      const int64_t w = std::min(after + price_.b, price_.batch);
      if (c.most >= w / price_.b) out.push_back({w, c.tau});
    }
    for (size_t cut = 1; cut < run.size() && (series || cut == 1); ++cut) {
      const std::vector<int> first(run.begin(), run.begin() + static_cast<long>(cut));
      const std::vector<int> second(run.begin() + static_cast<long>(cut), run.end());
      for (int k = 1; k < d; ++k) {
        for (const Value& behind : values(second, series, k, after)) {
          for (const Value& v : values(first, series, d - k, series ? behind.samples : after)) {
            out.push_back({series ? v.samples : std::max(v.samples, behind.samples),
                           std::max(v.slowest, behind.slowest)});
          }
        }
      }
    }
    return out;
  }

 private:
  const Price& price_;
  const graph::SpTree& tree_;
};

TEST(Baselines, GraphPipesAlgorithmEqualsAllItsSplits) {
  int found = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const SmallCase c = small_case(seed);
    const graph::SpTree tree = graph::series_parallel(c.graph);
    const bool islands = std::any_of(tree.nodes.begin(), tree.nodes.end(), [](const auto& n) {
      return n.kind == graph::SpTree::Kind::island;
    });
    if (c.graph.ops.size() > 6 || c.devices.size() > 4 || islands) continue;
    const Island island = island_of(c.devices);
    const int64_t b = c.options.batch;
    const Price price{c.graph, island, b, c.options.batch};
    double best = kInfinity;
    for (const auto& v : AllSplits(price, tree).values({tree.root}, true, island.devices, 0)) {
      best = std::min(best, v.slowest);
    }
    // It begins at twice the time of one device.
    double high = 0;
    for (const graph::Op& op : c.graph.ops) {
      high +=
          2 *
          (op.cost.forward.at(b) + op.cost.backward_input.at(b) + op.cost.backward_weight.at(b)) /
          b;
    }
    const SequentialResult r = graphpipe_search(c.graph, island, c.options, b, kNever);
    ASSERT_EQ(r.found, best <= high);
    if (!r.found) continue;
    ++found;
    double slowest = 0;
    for (const Stage& s : r.plan.stages) {
      const StageCost cost = price(s.ops, s.replicas, 1, false);
      slowest = std::max(slowest, cost.tau);
      EXPECT_LE(s.in_flight / b, cost.most);
    }
    ASSERT_GE(slowest, best * (1 - 1e-12));
    ASSERT_LE(slowest, best + 2e-3 * high / island.devices);  // its eps
    EXPECT_EQ(r.plan.num_devices(), island.devices);
  }
  EXPECT_GT(found, 50);
}

int depth(const graph::Graph& graph, const Plan& plan) {
  const StageGraph stages = stage_graph(graph, plan);
  std::vector<int> deep(plan.stages.size(), 1);
  for (int s : stages.order) {
    for (int e : stages.successors[s]) {
      deep[stages.edges[e].to] = std::max(deep[stages.edges[e].to], deep[s] + 1);
    }
  }
  return *std::max_element(deep.begin(), deep.end());
}

// GraphPipe's case study (arXiv 2406.17145, section 7.4): two branches of four layers on eight
// devices; as a chain eight stages deep, as a graph four.
TEST(Baselines, GraphPipesCaseStudyIsHalfAsDeepAsAChain) {
  graph::Graph g = graph::build_graph("mmt:branches=2,layers=4");
  PlannerOptions options;
  options.batch = 128;
  options.micro_batches = {4};
  DeviceGroup group;
  group.memory = 3e9;  // no room for all of it on one device
  const Devices devices = uniform_devices(8, 4, group);
  const BaselineResult r = run_baseline("graphpipe", g, devices, options);
  ASSERT_TRUE(r.ok()) << r.failure;
  const BaselineResult equal = run_baseline("equal", g, devices, options);
  ASSERT_TRUE(equal.ok()) << equal.failure;
  EXPECT_EQ(depth(chained(g, equal.plan), equal.plan), 8);
  EXPECT_LE(depth(g, r.plan), 5);
  // So it holds fewer samples: not quite half as many, as its stages are no longer all alike.
  const auto most = [](const Plan& plan) {
    int64_t most = 0;
    for (const Stage& s : plan.stages) most = std::max(most, s.in_flight);
    return most;
  };
  EXPECT_EQ(most(equal.plan), 8 * 4);
  EXPECT_LE(most(r.plan), 5 * 4);
}

graph::Graph chain_of(int n, double seconds) {
  graph::Graph g;
  g.name = "chain";
  for (int i = 0; i < n; ++i) {
    graph::Op& op = g.ops.emplace_back();
    op.name = fmt::format("op{}", i);
    op.cost.forward.per_sample = op.cost.backward_input.per_sample = seconds;
    op.cost.parameter_bytes = 100;
    op.cost.activation_bytes = 10;
    if (i > 0) g.edges.push_back({i - 1, i, 0, 0});
  }
  return g;
}

TEST(Baselines, EqualCutsEqualWorkAndRunsOneForwardOneBackward) {
  const graph::Graph g = chain_of(6, 1);
  PlannerOptions options;
  options.batch = 8;
  options.micro_batches = {2};
  const BaselineResult r = run_baseline("equal", g, uniform_devices(3, 3, {}), options);
  ASSERT_TRUE(r.ok()) << r.failure;
  ASSERT_EQ(r.plan.stages.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(r.plan.stages[i].ops, (std::vector<OpId>{2 * i, 2 * i + 1}));
    EXPECT_EQ(r.plan.stages[i].in_flight, 2 * (3 - i));
  }
  // Four micro-batches of 2 x 2 x 2 seconds a stage; fill and drain of two stages more.
  EXPECT_NEAR(r.plan.predicted_seconds, (4 + 2) * 8.0, 1e-9);
}

TEST(Baselines, DataTakesAsManyReplicasAsShareTheMicroBatch) {
  const graph::Graph g = chain_of(3, 1);
  PlannerOptions options;
  options.batch = 12;
  const BaselineResult r = run_baseline("data", g, uniform_devices(8, 8, {}), options);
  ASSERT_TRUE(r.ok()) << r.failure;
  ASSERT_EQ(r.plan.stages.size(), 1u);
  EXPECT_EQ(r.plan.stages[0].replicas, 6);  // eight do not divide it
  EXPECT_NEAR(r.plan.predicted_seconds, 2 * 3 * 2.0, 0.01);
}

TEST(Baselines, WhatDoesNotFitIsNoPlanAndSaysWhy) {
  const graph::Graph g = chain_of(4, 1);
  PlannerOptions options;
  options.batch = 4;
  DeviceGroup group;
  group.memory = 205;  // one operator: 200 of state, 10 a sample
  for (const Baseline& b : baselines()) {
    const BaselineResult r = run_baseline(b.name, g, uniform_devices(2, 2, group), options);
    EXPECT_FALSE(r.ok()) << b.name;
    EXPECT_NE(r.failure.find("fits memory"), std::string::npos) << r.failure;
  }
  EXPECT_EQ(code_of([&] { run_baseline("best", g, uniform_devices(2, 2, {}), options); }),
            ErrorCode::invalid_argument);
}

TEST(Baselines, ThoseWhoseTimeWasOverSaySo) {
  const graph::Graph g = graph::build_graph("candle:8");
  PlannerOptions options;
  options.batch = 1024;
  for (const char* name : {"graphpipe", "pipedream", "equal"}) {
    options.time_limit = 1e-3;
    EXPECT_TRUE(run_baseline(name, g, uniform_devices(32, 4, {}), options).timed_out) << name;
  }
  options.time_limit = 1e6;
  EXPECT_FALSE(run_baseline("equal", g, uniform_devices(32, 4, {}), options).timed_out);
}

// A prime number of samples: all at once do not fit, and one by one they are too many
// micro-batches. Neither they nor their numbers are gone through.
TEST(Baselines, APrimeNumberOfSamplesIsRefusedAtOnce) {
  const graph::Graph g = graph::build_graph("candle:2");
  PlannerOptions options;
  options.batch = 1'000'000'007;
  for (const char* name : {"interleaved", "zb-h1", "zb-v", "equal", "data"}) {
    SCOPED_TRACE(name);
    const BaselineResult r = run_baseline(name, g, uniform_devices(4, 4, {}), options);
    EXPECT_FALSE(r.timed_out);
    EXPECT_NE(r.failure.find("20000000 micro-batches"), std::string::npos) << r.failure;
  }
}

TEST(Baselines, ThoseOfEqualDegreesHaveTheReplicasThatAreAskedFor) {
  const graph::Graph g = chain_of(6, 1);
  PlannerOptions options;
  options.batch = 8;
  for (const int replicas : {1, 2}) {
    options.replicas = replicas;
    for (const char* name : {"interleaved", "zb-h1", "zb-v"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, replicas));
      const BaselineResult r = run_baseline(name, g, uniform_devices(2 * replicas, 4, {}), options);
      ASSERT_TRUE(r.ok()) << r.failure;
      for (const Stage& stage : r.plan.stages) EXPECT_EQ(stage.replicas, replicas);
    }
  }
}

constexpr const char* kSmallGraphs[] = {"candle:3,2,1024", "mmt:branches=2,layers=2",
                                        "random:12,5"};

// Eight devices, on two nodes, with 3 GB each.
Devices small_devices() {
  DeviceGroup group;
  group.memory = 3e9;
  return uniform_devices(8, 4, group);
}

TEST(Baselines, AllAreJudgedWithinTheirMemory) {
  const Devices devices = small_devices();
  PlannerOptions options;
  options.batch = 64;
  for (const char* spec : kSmallGraphs) {
    SCOPED_TRACE(spec);
    const graph::Graph g = graph::build_graph(spec);
    for (const Baseline& b : baselines()) {
      SCOPED_TRACE(std::string(b.name));
      const BaselineResult r = run_baseline(b.name, g, devices, options);
      if (!r.ok()) continue;
      check(r.plan, g, devices);
      const bool chain = b.chain;
      const Timeline line = evaluate(chain ? chained(g, r.plan) : g, devices, r.plan);
      EXPECT_TRUE(line.fits());
      EXPECT_EQ(line.seconds, r.plan.predicted_seconds);
      if (!chain) continue;
      EXPECT_EQ(depth(chained(g, r.plan), r.plan), static_cast<int>(r.plan.stages.size()));
    }
  }
}

TEST(Baselines, EveryPlanOfAGraphAsAChainIsAChain) {
  const Devices devices = small_devices();
  PlannerOptions options;
  options.batch = 64;
  for (const char* spec : kSmallGraphs) {
    SCOPED_TRACE(spec);
    const graph::Graph g = graph::build_graph(spec);
    for (const graph::Graph& chain : as_chains(g)) {
      graph::check(chain);
      ASSERT_EQ(chain.ops.size(), g.ops.size());
      // One order alone, so one downset of each size.
      EXPECT_EQ(graph::count_downsets(graph::Topology(chain), 1'000'000), g.ops.size() + 1);
      for (size_t i = 0; i < chain.edges.size(); ++i) {
        const double bytes = i < g.edges.size() ? g.edges[i].bytes : 0;
        EXPECT_EQ(chain.edges[i].bytes, bytes);
      }
      const Planned planned = make_plan(chain, devices, options);
      ASSERT_TRUE(planned.feasible);
      check(planned.plan, g, devices);  // a plan of the graph, too
      EXPECT_EQ(depth(chain, planned.plan), static_cast<int>(planned.plan.stages.size()));
    }
  }
  // Branch after branch, and in step; of what is a chain there is one order.
  EXPECT_EQ(as_chains(graph::build_graph("candle:3,2,1024")).size(), 2u);
  EXPECT_EQ(as_chains(chain_of(5, 1)).size(), 1u);
}

}  // namespace
}  // namespace ductile::plan
