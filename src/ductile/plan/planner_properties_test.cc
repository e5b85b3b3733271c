// What holds between plans of related requests, whatever the graph and the devices.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/baselines/baselines.h"
#include "ductile/plan/search_space_impl.h"

namespace ductile::plan {
namespace {

constexpr double kSame = 1 + 1e-9;

// Whether all is tried, which takes many minutes.
const bool kIsLong = std::getenv("DUCTILE_ALL_SIZES") != nullptr;

DeviceGroup v100() {
  DeviceGroup g;
  g.name = "v100";
  g.devices_per_node = 4;
  return g;
}

DeviceGroup a100() {
  DeviceGroup g;
  g.name = "a100";
  g.devices_per_node = 8;
  g.memory = 40e9;
  g.speed = 4;
  g.model.flops = 56e12;
  g.model.memory_bandwidth = 1.5e12;
  g.intra = {300e9, 3e-6};
  g.inter = {25e9, 8e-6};
  return g;
}

DeviceGroup t4() {
  DeviceGroup g;
  g.name = "t4";
  g.devices_per_node = 4;
  g.speed = 0.4;
  g.intra = {10e9, 10e-6};
  g.inter = {3e9, 30e-6};
  return g;
}

DeviceGroup nodes(DeviceGroup g, int n) {
  g.nodes = n;
  return g;
}

double seconds_of(const graph::Graph& graph, const Devices& devices, PlannerOptions options) {
  const Planned p = make_plan(graph, devices, options);
  if (!p.feasible) return std::numeric_limits<double>::infinity();
  check(p.plan, graph, devices);
  const Timeline line = evaluate(graph, devices, p.plan);
  EXPECT_TRUE(line.fits());
  EXPECT_EQ(line.seconds, p.simulated_seconds);
  EXPECT_LE(p.schedule_bound, p.simulated_seconds * kSame);
  return line.seconds;
}

PlannerOptions batch_of(int64_t batch) {
  PlannerOptions options;
  options.batch = batch;
  options.time_limit = 3600;  // what holds of searches that end holds on a busy machine
  return options;
}

TEST(PlannerProperties, MoreDevicesNeverGiveASlowerPlan) {
  struct Case {
    const char* graph;
    int64_t batch;
    std::vector<std::vector<DeviceGroup>> machines;  // each within the next
  };
  const DeviceGroup v = v100(), a = a100(), t = t4();
  for (const Case& c :
       {Case{"dlrm:1,26,1000000,512", 8192, {{v}, {nodes(v, 2)}, {nodes(v, 3)}, {nodes(v, 4)}}},
        Case{"dlrm:1,26,1000000,512", 65536, {{a}, {nodes(a, 2)}}},
        Case{"unet", 64, {{nodes(v, 2), a}, {nodes(v, 2), a, t}}},
        Case{
            "candle:8", 256, {{v}, {nodes(v, 2)}, {nodes(v, 2), t}, {nodes(v, 2), nodes(t, 2)}}}}) {
    double before = std::numeric_limits<double>::infinity();
    const graph::Graph graph = graph::build_graph(c.graph, c.machines[0][0].model);
    for (const auto& machine : c.machines) {
      const bool is_slow = c.batch == 256 && Devices(machine).size() > 8;
      if (is_slow && !kIsLong) continue;
      const double now = seconds_of(graph, Devices(machine), batch_of(c.batch));
      EXPECT_LE(now, before * kSame) << c.graph << " on " << Devices(machine).size();
      before = now;
    }
  }
}

// Those that a number names lie within each other, too.
TEST(PlannerProperties, ALargerNumberOfDevicesNeverGivesASlowerPlan) {
  for (const char* name : {"mmt:2,2,64,256", "candle:3,2,256"}) {
    double before = std::numeric_limits<double>::infinity();
    for (int n = 1; n <= 9; ++n) {
      const Devices devices = find_devices(std::to_string(n));
      ASSERT_EQ(devices.size(), n);
      EXPECT_EQ(devices.num_nodes(), (n + 3) / 4);
      const graph::Graph graph = graph::build_graph(name, devices.groups().front().model);
      const double now = seconds_of(graph, devices, batch_of(64));
      EXPECT_LE(now, before * kSame) << name << " on " << n;
      before = now;
    }
  }
}

// Of one node.
TEST(PlannerProperties, MoreDevicesOfANodeNeverGiveASlowerPlan) {
  for (const char* name : {"candle:2,2,256", "mmt:1,1,64,256"}) {
    double before = std::numeric_limits<double>::infinity();
    DeviceGroup node = a100();
    const graph::Graph graph = graph::build_graph(name, node.model);
    for (int n = 1; n <= 8; ++n) {
      node.devices_per_node = n;
      const double now = seconds_of(graph, Devices({node}), batch_of(60));
      EXPECT_LE(now, before * kSame) << name << " on " << n;
      before = now;
    }
  }
}

// Of more nodes than are parts in each number.
TEST(PlannerProperties, AnotherNodeBesideManyNeverGivesASlowerPlan) {
  double before = std::numeric_limits<double>::infinity();
  DeviceGroup node = t4();
  node.devices_per_node = 1;
  const graph::Graph graph = graph::build_graph("candle:2,2,256", node.model);
  for (int n = 9; n <= 12; ++n) {
    const double now = seconds_of(graph, Devices({nodes(node, n)}), batch_of(60));
    EXPECT_LE(now, before * kSame) << n;
    before = now;
  }
}

// A random machine of up to three groups.
std::vector<DeviceGroup> random_machine(Rng& rng) {
  std::vector<DeviceGroup> groups;
  const int num = 1 + static_cast<int>(rng.below(3));
  for (int i = 0; i < num; ++i) {
    DeviceGroup g;
    g.name = "group" + std::to_string(i);
    g.nodes = 1 + static_cast<int>(rng.below(3));
    g.devices_per_node = 1 << rng.below(3);
    g.speed = rng.below(2) == 0 ? 1 : 0.25 * (1 + rng.below(12));
    g.memory = 1e9 * (1 + rng.below(30));
    const double scale = 1 << rng.below(6);
    g.intra = {100e9 / scale, 5e-6};
    g.inter = {12.5e9 / scale, 10e-6 * (1 + rng.below(10))};
    groups.push_back(g);
  }
  return groups;
}

graph::Graph random_graph(Rng& rng) {
  switch (rng.below(5)) {
    case 0:
      return graph::build_graph(
          fmt::format("random:{},{}", 4 + rng.below(20), 1 + rng.below(1000)));
    case 1:
      return graph::build_graph(
          fmt::format("candle:{},{},{}", 2 + rng.below(4), 1 + rng.below(3), 256 << rng.below(4)));
    case 2:
      return graph::build_graph(
          fmt::format("dlrm:{},{},10000,{}", 1 + rng.below(3), rng.below(6), 128 << rng.below(4)));
    case 3:
      return graph::build_graph(
          fmt::format("mmt:{},{},64,256", 1 + rng.below(3), 1 + rng.below(3)));
    default:
      return graph::build_graph(fmt::format("branches:{},{},{},{}", 2 + rng.below(3),
                                            1 + rng.below(4), 1 + rng.below(4),
                                            1 + rng.below(1000)));
  }
}

// How many random machines and models; the others in the long form.
uint64_t random_worlds() { return kIsLong ? 8 : 2; }

TEST(PlannerProperties, MoreDevicesNeverGiveASlowerPlanOnRandomMachines) {
  int compared = 0;
  for (uint64_t seed = 0; seed < random_worlds(); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 31);
    const graph::Graph graph = random_graph(rng);
    const std::vector<DeviceGroup> all = random_machine(rng);
    const PlannerOptions options = batch_of(int64_t{8} << rng.below(4));
    const double whole = seconds_of(graph, Devices(all), options);
    for (size_t g = 0; g < all.size(); ++g) {
      std::vector<DeviceGroup> less = all;
      if (less[g].nodes > 1) {
        --less[g].nodes;
      } else {
        less.erase(less.begin() + static_cast<long>(g));
      }
      if (less.empty()) continue;
      const double part = seconds_of(graph, Devices(less), options);
      ASSERT_LE(whole, part * kSame) << "without a node of group " << g;
      ++compared;
    }
  }
  EXPECT_GT(compared, 2);
}

// Of these machines the smaller one has the better plan with two samples in a micro-batch, and it
// has it with one replica of each stage.
TEST(PlannerProperties, AMachineGetsThePlanOfASmallerOneAndThatOfOneReplica) {
  if (!kIsLong) GTEST_SKIP() << "it takes minutes";
  DeviceGroup slow;
  slow.name = "slow";
  slow.nodes = 3;
  slow.devices_per_node = 4;
  slow.memory = 19e9;
  slow.speed = 0.5;
  slow.intra = {5e9, 5e-6};
  slow.inter = {1.25e9, 100e-6};
  DeviceGroup fast = slow;
  fast.name = "fast";
  fast.nodes = 1;
  fast.devices_per_node = 2;
  fast.memory = 25e9;
  fast.speed = 3;
  fast.intra = {100e9, 5e-6};
  fast.inter = {6e9, 100e-6};
  const graph::Graph graph = graph::build_graph("random:19,287");
  PlannerOptions options = batch_of(16);
  const double all = seconds_of(graph, Devices({slow, fast}), options);
  EXPECT_LE(all, seconds_of(graph, Devices({nodes(slow, 2), fast}), options) * kSame);
  options.replicas = 1;
  EXPECT_LE(all, seconds_of(graph, Devices({slow, fast}), options) * kSame);
}

// Plans that `ductile train` runs: stages have replicas on devices of their own, and one
// micro-batch; none with a given equal number of replicas is faster, no plan of more freedom is
// slower than those of one device per stage, and more devices are never slower. Some device does a
// replica's part of the heaviest operator.
TEST(PlannerProperties, PlansThatCanBeRun) {
  for (uint64_t seed = 0; seed < 2 * random_worlds(); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 37);
    graph::Graph graph = random_graph(rng);
    if (seed % 2 == 1) graph.ops[0].cost.forward.per_sample += 1;  // most of the work
    DeviceGroup group = random_machine(rng)[0];
    group.memory = 1e12;
    PlannerOptions options = batch_of(int64_t{8} << rng.below(3));
    const double free = make_plan(graph, Devices({group}), options).simulated_seconds;
    options.runnable = true;
    double heaviest = 0;
    for (const graph::Op& op : graph.ops)
      heaviest =
          std::max(heaviest, op.cost.total_per_sample() * static_cast<double>(options.batch));
    double before = std::numeric_limits<double>::infinity();
    for (const int devices : {1, 2, 3, group.devices_per_node}) {
      if (devices > group.devices_per_node) continue;
      DeviceGroup part = group;
      part.nodes = 1;
      part.devices_per_node = devices;
      const Planned found = make_plan(graph, Devices({part}), options);
      ASSERT_TRUE(found.feasible);
      std::set<int> taken;
      int replicas = 1;
      for (const Stage& stage : found.plan.stages) {
        replicas = std::max(replicas, stage.replicas);
        EXPECT_EQ(stage.tensor, 1);
        EXPECT_EQ(stage.micro_batch, found.plan.stages[0].micro_batch);
        EXPECT_FALSE(stage.shard_optimizer);
        EXPECT_EQ(static_cast<int>(stage.devices.size()), stage.replicas);
        for (const int device : stage.devices) EXPECT_TRUE(taken.insert(device).second);
      }
      EXPECT_TRUE(is_runnable(found.plan));
      EXPECT_LE(heaviest / group.speed / replicas, found.simulated_seconds * kSame) << devices;
      for (const int each : {1, 2}) {
        if (each > devices) continue;
        PlannerOptions fixed = options;
        fixed.replicas = each;
        const Planned limited = make_plan(graph, Devices({part}), fixed);
        ASSERT_TRUE(limited.feasible);
        EXPECT_EQ(limited.plan.stages[0].replicas, each);
        EXPECT_LE(found.simulated_seconds, limited.simulated_seconds * kSame) << each;
        EXPECT_LE(limited.lower_bound, limited.formula_seconds * kSame) << each;
        if (each == 1) {
          EXPECT_LE(free, limited.simulated_seconds * kSame) << devices;
        }
      }
      EXPECT_LE(found.simulated_seconds, before * kSame) << devices;
      before = found.simulated_seconds;
    }
  }
}

// What a chain of stages waits for is all that it adds.
TEST(PlannerProperties, APlanThatCanBeRunIsNeverSlowerThanThatOfAChain) {
  const auto expect_no_better = [](const graph::Graph& graph, const Devices& devices,
                                   int64_t batch) {
    PlannerOptions options = batch_of(batch);
    options.runnable = true;
    EXPECT_LE(seconds_of(graph, devices, options),
              seconds_of(as_chains(graph)[0], devices, options) * kSame)
        << graph.name;
  };
  const DeviceGroup v = v100();
  expect_no_better(graph::build_graph("candle:3,2,256", v.model), Devices({v}), 256);
  if (!kIsLong) return;  // the others take minutes
  expect_no_better(graph::build_graph("candle", v.model), Devices({nodes(v, 2)}), 8192);
  for (uint64_t seed = 0; seed < random_worlds(); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 38);
    const graph::Graph graph = random_graph(rng);
    DeviceGroup group = random_machine(rng)[0];
    group.memory = 1e12;
    expect_no_better(graph, Devices({group}), int64_t{8} << rng.below(3));
  }
}

// Of these four operators the chain of each order has a plan that is 5 % faster than any that the
// searches of the graph, and of the chain of the first order alone, come upon.
TEST(PlannerProperties, NoOrderAsAChainHasAFasterPlanThatCanBeRun) {
  graph::Graph graph;
  graph.optimizer_factor = 0;
  using graph::Affine;  // fixed, per sample
  const auto add = [&graph](const char* name, Affine forward, Affine input, Affine weight,
                            double parameters, double activations, double outputs) {
    graph::Op& op = graph.ops.emplace_back();
    op.name = name;
    op.output_bytes = outputs;
    op.cost.forward = forward;
    op.cost.backward_input = input;
    op.cost.backward_weight = weight;
    op.cost.parameter_bytes = parameters;
    op.cost.activation_bytes = activations;
  };
  add("a", {0, 9e-5}, {7e-5, 7e-6}, {0, 2.7e-3}, 190e6, 78e6, 430e3);
  add("b", {3e-4, 2.2e-5}, {0, 2e-4}, {2.8e-3, 1.8e-3}, 7e3, 52e6, 19e3);
  add("c", {1e-5, 4.5e-6}, {0, 9.5e-4}, {4.7e-4, 4.9e-5}, 120e3, 19e3, 270e3);
  add("d", {0, 2.5e-4}, {0, 1e-5}, {0, 0}, 14e3, 47e6, 4.8e6);
  graph.edges = {{0, 2, 0, 430e3}, {2, 3, 0, 270e3}, {1, 3, 0, 19e3}};
  DeviceGroup node;
  node.devices_per_node = 2;
  node.memory = 64e9;
  node.intra = {100e9, 5e-6};
  node.inter = {1e9, 1e-3};
  const Devices devices({nodes(node, 3)});
  PlannerOptions options = batch_of(32);
  options.runnable = true;
  const double free = seconds_of(graph, devices, options);
  const std::vector<graph::Graph> chains = as_chains(graph);
  EXPECT_EQ(chains.size(), 2u);
  for (const graph::Graph& chain : chains) {
    EXPECT_LE(free, seconds_of(chain, devices, options) * kSame);
  }
}

// A graph of operators of very different times, some of them zero, with short cuts.
graph::Graph random_operators(Rng& rng) {
  graph::Graph graph;
  graph.optimizer_factor = 0;
  const auto amount = [&rng](double low, double high) {
    return rng.below(4) == 0 ? 0 : low * std::pow(high / low, rng.uniform(0, 1));
  };
  const int num = 3 + static_cast<int>(rng.below(5));
  for (int i = 0; i < num; ++i) {
    graph::Op& op = graph.ops.emplace_back();
    op.name = fmt::format("op{}", i);
    op.output_bytes = 4 + amount(1e3, 1e7);
    op.cost.forward = {amount(1e-5, 1e-3), amount(1e-6, 1e-3)};
    op.cost.backward_input = {amount(1e-5, 1e-3), amount(1e-6, 2e-3)};
    op.cost.backward_weight = {amount(1e-5, 3e-3), amount(1e-6, 3e-3)};
    op.cost.parameter_bytes = amount(1e3, 3e8);
    op.cost.activation_bytes = amount(1e4, 1e8);
    for (int j = 0; j < i; ++j) {
      if (rng.below(3) == 0) graph.edges.push_back({j, i, 0, graph.ops[j].output_bytes});
    }
  }
  return graph;
}

// As the graph runs the plans of its chains: the waits of a chain can bring its messages into a
// better order than they have there.
TEST(PlannerProperties, NoPlanOfARandomGraphsChainIsFasterOnTheGraph) {
  int compared = 0;
  for (uint64_t seed = 0; seed < (kIsLong ? 2000 : 40); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 39);
    const graph::Graph graph = random_operators(rng);
    DeviceGroup node;
    node.devices_per_node = 1 << rng.below(3);
    node.nodes = 1 + static_cast<int>(rng.below(8 / node.devices_per_node));
    node.memory = 64e9;
    node.inter = {12e9 / (1 << rng.below(6)), 1e-5 * std::pow(100, rng.uniform(0, 1))};
    const Devices devices({node});
    PlannerOptions options = batch_of(int64_t{8} << rng.below(4));
    options.runnable = rng.below(2) == 0;
    options.split = rng.below(2) == 0;
    const double free = seconds_of(graph, devices, options);
    for (const graph::Graph& chain : as_chains(graph)) {
      const Plan plan = make_plan(chain, devices, options).plan;
      EXPECT_LE(free, evaluate(graph, devices, plan).seconds * kSame);
      ++compared;
    }
  }
  EXPECT_GT(compared, 40);
}

// Every p stages of equal work x r replicas x t splits, operators branch after branch; the samples
// in flight are GraphPipe's.
template <class Visit>
void for_equal_cuts(const graph::Graph& graph, const Devices& devices, int64_t batch, Visit visit) {
  const std::vector<OpId> order = depth_first_order(graph);
  int most_split = 1;
  double total = 0;
  for (const graph::Op& op : graph.ops) {
    most_split = std::max(most_split, op.max_split);
    total += op.cost.total_per_sample();
  }
  for (int p = 1; p <= std::min<int>(devices.size(), static_cast<int>(order.size())); ++p) {
    Plan cut;
    cut.batch = batch;
    cut.stages.resize(p);
    double done = 0;
    int at = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const double work = graph.ops[order[i]].cost.total_per_sample();
      const bool due = !cut.stages[at].ops.empty() && done + work / 2 >= total * (at + 1) / p;
      const bool must = order.size() - i == static_cast<size_t>(p - at - 1);
      if (at + 1 < p && (due || must)) ++at;
      cut.stages[at].ops.push_back(order[i]);
      done += work;
    }
    for (Stage& s : cut.stages) std::sort(s.ops.begin(), s.ops.end());
    for (int t = 1; t <= most_split && p * t <= devices.size(); t *= 2) {
      for (int r = 1; p * t * r <= devices.size(); ++r) {
        for (int64_t b = r; b <= batch; b += r) {
          if (batch % b != 0 || batch / b > 64) continue;  // no end of small ones
          Plan plan = cut;
          for (Stage& s : plan.stages) {
            const bool splits = std::any_of(s.ops.begin(), s.ops.end(), [&](OpId v) {
              return graph::allows(graph.ops[v], t, false);
            });
            s.replicas = r, s.tensor = splits ? t : 1, s.micro_batch = b;
          }
          const std::vector<int64_t> w = in_flight_samples(stage_graph(graph, plan), plan);
          for (int s = 0; s < p; ++s) plan.stages[s].in_flight = w[s];
          place(graph, devices, plan);
          visit(plan);
          plan.schedule = ScheduleKind::zero_bubble;
          visit(plan);
        }
      }
    }
  }
}

// Named baselines and the grid of equal cuts, with both schedules.
// `slack`: equal work is cut in several ways, of which the planner tries one.
void expect_none_better(const graph::Graph& graph, const Devices& devices,
                        const PlannerOptions& options, double slack) {
  const double ours = seconds_of(graph, devices, options);
  for (const Baseline& b : baselines()) {
    const BaselineResult r = run_baseline(b.name, graph, devices, options);
    if (r.ok()) {
      EXPECT_LE(ours, r.plan.predicted_seconds * kSame) << b.name;
    }
  }
  for_equal_cuts(graph, devices, options.batch, [&](const Plan& plan) {
    const Timeline line = evaluate(graph, devices, plan);
    if (!line.fits()) return;
    EXPECT_LE(ours, line.seconds * slack)
        << plan.stages.size() << " stages x " << plan.stages[0].replicas << " x "
        << plan.stages[0].tensor << ", micro-batch " << plan.stages[0].micro_batch << ", "
        << to_string(plan.schedule);
  });
}

TEST(PlannerProperties, NoBaselineAndNoEqualCutIsBetter) {
  DeviceGroup a = a100();
  a.nodes = 2;
  DeviceGroup v = v100();
  v.nodes = 2;
  struct Case {
    const char* graph;
    int64_t batch;
    DeviceGroup group;
  };
  for (const Case& c :
       {Case{"dlrm:1,26,1000000,512", 8192, a}, Case{"candle:8", 1024, v},
        Case{"mmt:2,2,128,512", 64, v}, Case{"unet", 32, v}, Case{"gpt:8,512,8,128,5000", 64, v}}) {
    SCOPED_TRACE(c.graph);
    expect_none_better(graph::build_graph(c.graph, c.group.model), Devices({c.group}),
                       batch_of(c.batch), kSame);
  }
  for (const int n : {3, 5, 6, 7}) {
    SCOPED_TRACE(n);
    a.nodes = 1;
    a.devices_per_node = n;
    expect_none_better(graph::build_graph("candle:2,2,256", a.model), Devices({a}), batch_of(60),
                       1.05);
  }
  for (uint64_t seed = 0; seed < random_worlds(); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 32);
    const graph::Graph graph = random_graph(rng);
    expect_none_better(graph, Devices(random_machine(rng)), batch_of(int64_t{8} << rng.below(2)),
                       1.05);
    if (HasFailure()) return;
  }
}

// By the formula other cuts come before the best one, which has one sample in a micro-batch; with
// that size alone the judge sees it.
TEST(PlannerProperties, NoSizeOfMicroBatchesAloneGivesAFasterPlan) {
  struct Row {
    double fixed, forward, backward_input, backward_weight;  // microseconds
    double parameters;                                       // kilobytes
    int max_split;
  };
  constexpr Row kRows[] = {
      {0, 530, 0, 530, 4100, 1}, {0, 76, 0, 76, 32, 8},    {0, 180, 240, 180, 630, 1},
      {10, 96, 96, 96, 390, 1},  {100, 240, 0, 0, 590, 1}, {100, 27, 27, 13, 65, 8},
      {0, 460, 590, 0, 5800, 1}, {0, 70, 0, 35, 33000, 1}, {10, 530, 690, 530, 710, 2},
      {0, 230, 230, 0, 3.2, 1},  {0, 53, 0, 26, 110, 1},   {10, 10, 0, 5.2, 120000, 1}};
  graph::Graph graph;
  graph.name = "twelve";
  for (const Row& row : kRows) {
    graph::Op op;
    op.name = fmt::format("o{}", graph.ops.size());
    op.cost.forward = {row.fixed * 1e-6, row.forward * 1e-6};
    op.cost.backward_input.per_sample = row.backward_input * 1e-6;
    op.cost.backward_weight.per_sample = row.backward_weight * 1e-6;
    op.cost.parameter_bytes = row.parameters * 1e3;
    op.max_split = row.max_split;
    op.recomputable = op.name != "o4" && op.name != "o6";
    graph.ops.push_back(std::move(op));
  }
  graph.edges = {{0, 1, 0, 750e3}, {0, 2, 0, 750e3},  {2, 3, 0, 1200},  {3, 4, 0, 26e3},
                 {4, 5, 0, 350},   {5, 6, 0, 360},    {6, 7, 0, 630},   {0, 8, 0, 750e3},
                 {0, 9, 0, 750e3}, {0, 10, 0, 750e3}, {10, 11, 0, 58e3}};
  DeviceGroup node;
  node.devices_per_node = 2;
  node.memory = 8e9;
  node.intra = {4e9, 10e-6};
  PlannerOptions options = batch_of(8);
  const double free = seconds_of(graph, Devices({node}), options);
  for (const int64_t b : {1, 2, 4, 8}) {
    options.micro_batches = {b};
    EXPECT_LE(free, seconds_of(graph, Devices({node}), options) * kSame) << b;
  }
}

TEST(PlannerProperties, MoreFreedomNeverGivesASlowerPlan) {
  int differ = 0;
  for (uint64_t seed = 0; seed < random_worlds(); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 33);
    graph::Graph graph = random_graph(rng);
    if (seed % 6 == 0) graph = graph::build_graph("gpt:2,256,8,64,1000");
    const Devices devices(random_machine(rng));
    const PlannerOptions free = batch_of(int64_t{16} << rng.below(3));
    const double ours = seconds_of(graph, devices, free);
    PlannerOptions less = free;
    const auto expect_no_better = [&](const char* what) {
      const double seconds = seconds_of(graph, devices, less);
      ASSERT_LE(ours, seconds * kSame) << what;
      differ += seconds > ours;
      less = free;
    };
    less.split = false;
    expect_no_better("without splits");
    less.objective = Objective::throughput;
    expect_no_better("for throughput");
    less.zero_bubble = false;
    expect_no_better("without zero-bubble schedules");
    less.split = false, less.objective = Objective::throughput;
    expect_no_better("for throughput, without splits");
    for (int64_t b = kIsLong ? 1 : 4; b <= free.batch; b *= 2) {  // of few, many are slow
      less.micro_batches = {b};
      expect_no_better("with micro-batches of one size");
    }
    less.replicas = 1;
    expect_no_better("with one replica");
    less.replicas = 1, less.split = false, less.objective = Objective::throughput;
    expect_no_better("with one replica, for throughput, without splits");
    ASSERT_LE(ours, seconds_of(as_chains(graph)[0], devices, free) * kSame) << "as a chain";
  }
  EXPECT_GT(differ, 0);
}

}  // namespace
}  // namespace ductile::plan
