// What stages, messages and memory cost, in closed form and against a count of every byte.
#include "ductile/plan/cost.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/planner.h"

namespace ductile::plan {
namespace {

graph::Op op_of(std::string name, double seconds) {
  graph::Op op;
  op.name = std::move(name);
  op.cost.forward.per_sample = op.cost.backward_input.per_sample = seconds;
  return op;
}

Devices with_links(int n, Link link) {
  DeviceGroup group;
  group.intra = group.inter = link;
  return uniform_devices(n, n, group);
}

TEST(Cost, MessagesToSeveralDevicesUseTheirCardsAtOnce) {
  // Eight branches of a device each meet in a stage of `replicas`; each message takes 4 samples x
  // 5 bytes / 1 byte a second = 20 seconds of a card. Nothing else takes time.
  for (const int replicas : {1, 2, 4}) {
    SCOPED_TRACE(replicas);
    graph::Graph g;
    Plan plan;
    plan.batch = 4;
    for (int i = 0; i < 9; ++i) {
      g.ops.push_back(op_of(fmt::format("op{}", i), i < 8 ? 1 : 2));
      if (i < 8) g.edges.push_back({i, 8, 0, 5});
      Stage s;
      s.ops = {i};
      s.micro_batch = s.in_flight = 4;
      if (i == 8) s.replicas = replicas;
      plan.stages.push_back(s);
    }
    const double rounds = 8.0 / replicas * 20;  // there, and as much back
    const Timeline t = evaluate(g, with_links(12, {1, 0}), plan);
    EXPECT_DOUBLE_EQ(t.seconds, 4 + rounds + 2 * 8.0 / replicas + rounds + 4);
  }
}

TEST(Cost, AWeightOfStagesOnSeveralNodesIsSummedOverTheLinkBetweenThem) {
  // Two nodes of two devices; inside a node a byte takes a second, between nodes ten.
  DeviceGroup group;
  group.intra = {1, 0}, group.inter = {0.1, 0};
  const Devices devices = uniform_devices(4, 2, group);
  graph::Graph g;
  Plan plan;
  for (int i = 0; i < 3; ++i) {
    g.ops.push_back(op_of(fmt::format("op{}", i), 1));
    g.ops.back().tied = i < 2 ? 7 : -1;
    g.ops.back().cost.parameter_bytes = i < 2 ? 6 : 0;
    Stage s;
    s.ops = {i};
    plan.stages.push_back(s);
  }
  for (const auto& [holder, seconds] :
       {std::pair(1, 6.0), std::pair(2, 60.0), std::pair(3, 60.0)}) {
    plan.stages[0].devices = {0};
    plan.stages[1].devices = {holder};
    plan.stages[2].devices = {holder == 1 ? 2 : 1};
    const PlanCosts costs = plan_costs(g, devices, plan);
    ASSERT_EQ(costs.ties.size(), 1u);
    EXPECT_EQ(costs.ties[0].seconds, seconds) << "devices 0 and " << holder;
  }
}

TEST(Cost, AMessageTakesAsManyCardsAsTheSmallerStageHasDevices) {
  // From 4 devices to 2: 8 samples x 3 bytes over 2 cards.
  graph::Graph g;
  g.ops = {op_of("a", 0), op_of("b", 0)};
  g.edges = {{0, 1, 0, 3}};
  Plan plan;
  plan.batch = 8;
  plan.stages.resize(2);
  for (int i = 0; i < 2; ++i) {
    plan.stages[i].ops = {i};
    plan.stages[i].replicas = i == 0 ? 4 : 2;
    plan.stages[i].micro_batch = plan.stages[i].in_flight = 8;
  }
  EXPECT_DOUBLE_EQ(evaluate(g, with_links(6, {1, 0.5}), plan).seconds, 2 * (0.5 + 8 * 3 / 2.0));
}

TEST(Cost, ASplitOperatorPaysTheLatencyOfEveryRound) {
  // An all-reduce of four devices has 2 log2(4) rounds; two operators, each once forward and once
  // backward, the recomputed one forward again.
  graph::Graph g;
  for (int i = 0; i < 2; ++i) {
    graph::Op op = op_of(fmt::format("op{}", i), 0);
    op.output_bytes = 8;
    op.max_split = 4;
    op.recomputable = true;
    g.ops.push_back(op);
  }
  g.edges = {{0, 1, 0, 1}};
  const double latency = 0.25, bytes = 2.0 * 3 / 4 * 8;
  Plan plan;
  Stage stage;
  stage.ops = {0, 1};
  stage.tensor = 4;
  plan.stages = {stage};
  const Devices devices = with_links(4, {1, latency});
  const StageTimes t = plan_costs(g, devices, plan).times[0];
  EXPECT_DOUBLE_EQ(t.forward, 2 * (4 * latency + bytes));
  EXPECT_DOUBLE_EQ(t.backward_input, 2 * (4 * latency + bytes));
  plan.stages[0].recompute = {1};
  const StageTimes again = plan_costs(g, devices, plan).times[0];
  EXPECT_DOUBLE_EQ(again.backward_input, 3 * (4 * latency + bytes));
  // One that is not split has no rounds.
  g.ops[1].max_split = 1;
  EXPECT_DOUBLE_EQ(plan_costs(g, devices, plan).times[0].forward, 4 * latency + bytes);
}

// Every byte from the moment it is made until nobody needs it, on each device of each stage, from
// the boxes of a timeline: the most there is at once.
struct Ledger {
  struct Change {
    double time;
    double bytes;
  };
  const graph::Graph& graph;
  const Plan& plan;
  const Timeline& line;
  std::vector<int> stage_of;
  std::map<std::tuple<Box::Kind, int, int, int64_t>, const Box*> boxes;
  std::vector<std::vector<Change>> changes;

  Ledger(const graph::Graph& g, const Plan& p, const Timeline& t)
      : graph(g), plan(p), line(t), stage_of(g.ops.size()), changes(p.stages.size()) {
    for (size_t s = 0; s < p.stages.size(); ++s) {
      for (OpId v : p.stages[s].ops) stage_of[v] = static_cast<int>(s);
    }
    for (const Box& b : t.boxes) boxes[{b.kind, b.stage, b.to, b.index}] = &b;
  }
  const Box& task(Box::Kind kind, int s, int64_t i) const { return *boxes.at({kind, s, -1, i}); }
  void hold(int s, double from, double to, double bytes) {
    if (to <= from) return;
    changes[s].push_back({from, bytes});
    changes[s].push_back({to, -bytes});
  }
  // When a message that the task of `from` sent has arrived.
  double arrival(int from, int to, int64_t i, double sent) const {
    const auto at = boxes.find({Box::Kind::transfer, from, to, i});
    return at == boxes.end() ? sent : at->second->end;
  }
  double most(int s) {
    auto& all = changes[s];
    std::sort(all.begin(), all.end(), [](const Change& a, const Change& b) {
      return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
    });
    double now = 0, most = 0;
    for (const Change& c : all) most = std::max(most, now += c.bytes);
    return most;
  }
  void count() {
    const bool split = plan.schedule == ScheduleKind::zero_bubble;
    const Box::Kind last = split ? Box::Kind::backward_weight : Box::Kind::backward;
    const std::vector<double> inputs = graph::input_bytes(graph);
    for (size_t k = 0; k < plan.stages.size(); ++k) {
      const int s = static_cast<int>(k);
      const Stage& stage = plan.stages[k];
      const double share = double(stage.micro_batch) / stage.replicas;
      const StageSums sums = stage_sums(graph, stage.ops, stage.tensor, stage.recompute, inputs);
      for (int64_t i = 0; i < plan.batch / stage.micro_batch; ++i) {
        const Box& f = task(Box::Kind::forward, s, i);
        const Box& b = task(Box::Kind::backward, s, i);
        hold(s, f.start, task(last, s, i).end, sums.activation_bytes * share);
        // Gradients of its inputs, until they are where they came from.
        std::map<std::pair<OpId, int>, double> in;
        // Outputs, until their last reader takes them; then their gradients, summed.
        std::map<std::pair<OpId, int>, std::array<double, 4>> out;  // bytes, taken, first, last
        for (const graph::Edge& e : graph.edges) {
          const int from = stage_of[e.from], to = stage_of[e.to];
          if (from == to) continue;
          if (to == s && in.try_emplace({e.from, e.output}, e.bytes).second) {
            hold(s, b.start, arrival(s, from, i, b.end), e.bytes * share);
          }
          if (from != s) continue;
          const Stage& reader = plan.stages[to];
          auto& o = out.try_emplace({e.from, e.output}, std::array{e.bytes, 0.0, 1e300, 0.0})
                        .first->second;
          const int64_t first = i * stage.micro_batch / reader.micro_batch;
          const int64_t end = ((i + 1) * stage.micro_batch - 1) / reader.micro_batch;
          o[1] = std::max(o[1], task(Box::Kind::forward, to, end).start);
          const double gradient = task(Box::Kind::backward, to, first).end;
          o[2] = std::min(o[2], arrival(to, s, first, gradient));
        }
        for (const auto& [tensor, o] : out) {
          hold(s, f.end, o[1], o[0] * share);
          hold(s, std::max(o[1], o[2]), b.start, o[0] * share);
        }
      }
    }
  }
};

TEST(Cost, NoByteThatWaitsIsLeftOutOfPeakMemory) {
  int waits = 0, plans = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 71);
    const graph::Graph g =
        graph::build_graph(fmt::format("random:{},{},3", 3 + rng.below(10), seed));
    Plan plan;
    plan.batch = int64_t{4} << rng.below(3);
    plan.schedule = rng.below(2) == 0 ? ScheduleKind::kfkb : ScheduleKind::zero_bubble;
    const graph::Topology topology(g);
    const int num = 2 + static_cast<int>(rng.below(std::min<uint32_t>(5, g.ops.size() - 1)));
    const bool same = rng.below(2) == 0;
    plan.stages.resize(num);
    for (size_t i = 0; i < g.ops.size(); ++i) {
      plan.stages[i * num / g.ops.size()].ops.push_back(topology.order()[i]);
    }
    for (Stage& s : plan.stages) {
      std::sort(s.ops.begin(), s.ops.end());
      s.micro_batch = int64_t{1} << (same ? 1 : rng.below(3));
      if (s.micro_batch > 1 && rng.below(2) == 0) s.replicas = 2;
    }
    const std::vector<int64_t> w = in_flight_samples(stage_graph(g, plan), plan);
    for (int s = 0; s < num; ++s) {
      plan.stages[s].in_flight =
          std::min(plan.batch, w[s] + plan.stages[s].micro_batch * rng.below(3));
    }
    const Devices devices = with_links(2 * num, {1e5 * double(1 << rng.below(14)), 0});
    const PlanCosts costs = plan_costs(g, devices, plan);
    const Timeline line = evaluate(g, devices, plan, {.record = true});
    Ledger ledger(g, plan, line);
    ledger.count();
    for (int s = 0; s < num; ++s) {
      // Besides what is counted above: all that is held always, less the room for two gradients.
      const Stage& stage = plan.stages[s];
      const double share = double(stage.micro_batch) / stage.replicas;
      const double always = costs.fixed_memory[s] - 2 * boundary(g, stage.ops).in * share;
      const double most = ledger.most(s);
      ASSERT_LE(always + most, line.peak_memory[s] * (1 + 1e-12)) << "stage " << s;
      const StageSums sums =
          stage_sums(g, stage.ops, stage.tensor, stage.recompute, graph::input_bytes(g));
      waits +=
          most > 1.01 * sums.activation_bytes / stage.replicas * double(line.peak_in_flight[s]);
    }
    ++plans;
  }
  EXPECT_EQ(plans, 1500);
  EXPECT_GT(waits, 500);
}

}  // namespace
}  // namespace ductile::plan
