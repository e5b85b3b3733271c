#include "ductile/plan/evaluate.h"

#include <limits>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/testing/counted_graph.h"
#include "ductile/plan/testing/slow_evaluate.h"

namespace ductile::plan {
namespace {

// p stages in a row, one device each; F, B and W take the given times, messages none.
struct Row {
  graph::Graph graph;
  Plan plan;
  Devices devices;

  Row(int p, int64_t m, double f, double b, double w, double transfer = 0) {
    plan.batch = m;
    for (int i = 0; i < p; ++i) {
      graph::Op op;
      op.name = fmt::format("op{}", i);
      op.cost.forward.per_sample = f;
      op.cost.backward_input.per_sample = b;
      op.cost.backward_weight.per_sample = w;
      op.cost.activation_bytes = 1;
      graph.ops.push_back(op);
      if (i > 0) graph.edges.push_back({i - 1, i, 0, transfer});
      Stage s;
      s.ops = {i};
      s.in_flight = std::min<int64_t>(m, p - i);
      plan.stages.push_back(s);
    }
    DeviceGroup group;
    group.intra = group.inter = {1, 0};
    devices = uniform_devices(p, p, group);
  }
  Timeline run() const { return evaluate(graph, devices, plan); }
};

TEST(Evaluate, SamplesPerSecondAreANumberHoweverShortTheTimesAre) {
  Plan plan;
  plan.batch = 128;
  Timeline timeline;
  EXPECT_EQ(timeline.throughput(plan), 0) << "nothing takes time";
  timeline.seconds = 0.5;
  EXPECT_EQ(timeline.throughput(plan), 256);
  timeline.seconds = 1e-310;
  EXPECT_EQ(timeline.throughput(plan), std::numeric_limits<double>::max());
}

TEST(Evaluate, OneForwardOneBackwardHasItsKnownBubble) {
  for (int p : {1, 2, 4, 7}) {
    for (int64_t m : {1, 2, 8, 20}) {
      const Row row(p, m, 1, 1, 1);
      const Timeline t = row.run();
      EXPECT_DOUBLE_EQ(t.seconds, 3.0 * double(m + p - 1));
      EXPECT_NEAR(t.bubble, double(p - 1) / double(m + p - 1), 1e-12);
      for (int i = 0; i < p; ++i) {
        EXPECT_EQ(t.peak_in_flight[i], std::min<int64_t>(m, p - i));
        EXPECT_EQ(t.busy[i], 3.0 * double(m));
      }
    }
  }
}

TEST(Evaluate, TransfersDelayFillAndDrainOnly) {
  const Timeline t = Row(2, 6, 1, 1, 1, 0.5).run();
  // Down and up once each with one hop, but one in flight more than compute needs would hide it:
  // the steady state waits for the round trip.
  EXPECT_GE(t.seconds, 3 * 7 + 2 * 0.5);
  Row more(2, 6, 1, 1, 1, 0.5);
  more.plan.stages[0].in_flight = 4;
  EXPECT_DOUBLE_EQ(more.run().seconds, 3 * 7 + 2 * 0.5);
}

TEST(Evaluate, ZeroBubbleHasAThirdOfTheBubbleAtEqualMemoryAndNextToNoneAtTwice) {
  // Qi et al. 2023: with F = B = W the bubble of ZB-H1 is (p-1)(F+B-W), of ZB-H2 0, beyond work.
  const int p = 4;
  const int64_t m = 16;
  Row row(p, m, 1, 1, 1);
  row.plan.schedule = ScheduleKind::zero_bubble;
  const double whole = 3.0 * double(m);
  const Timeline equal = row.run();
  EXPECT_LE(equal.seconds, whole + (p - 1) * 1.0 + (p - 1) * 1.0);  // 1F1B: 3 (p - 1)
  for (int i = 0; i < p; ++i) EXPECT_LE(equal.peak_in_flight[i], p - i);
  for (Stage& s : row.plan.stages) s.in_flight = 2 * p;
  const Timeline twice = row.run();
  EXPECT_LT(twice.seconds, equal.seconds);
  EXPECT_LE(twice.seconds, whole + (p - 1) * 1.0 + 1);  // devices idle until their first F arrives
}

TEST(Evaluate, StagesWithEqualDevicesTakeTurns) {
  Row row(3, 4, 1, 1, 1, 100);
  for (Stage& s : row.plan.stages) s.devices = {0};
  const Timeline t = row.run();
  EXPECT_DOUBLE_EQ(t.seconds, 3 * 3 * 4);  // no transfers, no idling
  EXPECT_NEAR(t.bubble, 0, 1e-12);
}

TEST(Evaluate, SyncAndTiesComeAfterTheLastTask) {
  Row row(2, 2, 1, 1, 1);
  row.graph.ops[0].tied = row.graph.ops[1].tied = 5;
  row.graph.ops[0].cost.parameter_bytes = row.graph.ops[1].cost.parameter_bytes = 7;
  EXPECT_DOUBLE_EQ(row.run().seconds, 9 + 7);
}

TEST(Evaluate, StagesWithEqualDevicesSumTheirGradientsOneAfterTheOther) {
  Row row(3, 2, 1, 1, 1);
  for (int s = 0; s < 3; ++s) {
    row.plan.stages[s].replicas = row.plan.stages[s].micro_batch = row.plan.stages[s].in_flight = 2;
    row.plan.stages[s].devices = {0, 1};
    row.graph.ops[s].cost.parameter_bytes = 10;
  }
  EXPECT_DOUBLE_EQ(row.run().seconds, 5 + 3 * 10);  // the last stage is the first to end, at 5
  row.graph.ops[1].cost.parameter_bytes = 0;
  EXPECT_DOUBLE_EQ(row.run().seconds, 5 + 2 * 10);
}

TEST(Evaluate, AnOrderThatCannotBeCarriedOutNamesWhoWaits) {
  Row row(3, 6, 1, 1, 1);
  row.plan.stages[0].micro_batch = 2;
  row.plan.stages[0].in_flight = 2;
  row.plan.stages[1].micro_batch = 3;
  row.plan.stages[1].in_flight = 3;
  std::string text;
  EXPECT_EQ(testing::code_of([&] { row.run(); }, &text), ErrorCode::invalid_argument);
  EXPECT_NE(text.find("stage 1 waits for the inputs of micro-batch 0"), std::string::npos) << text;
  EXPECT_NE(text.find("in_flight must be at least"), std::string::npos) << text;
  // Given orders are followed whatever in_flight is.
  Row given(2, 2, 1, 1, 1);
  given.plan.orders = {"FBFB", "F2B2"};
  testing::code_of([&] { given.run(); }, &text);
  EXPECT_NE(text.find("stage 0 waits for the gradients of micro-batch 0, stage 1 waits for the "
                      "inputs of micro-batch 1; the orders of these stages wait for one another"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("in_flight"), std::string::npos) << text;
  const auto expect = [&](std::vector<std::string> orders, const char* what) {
    Row other(1, 2, 1, 1, 1);
    other.plan.orders = std::move(orders);
    testing::code_of([&] { other.run(); }, &text);
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  expect({"FB"}, "has 1 F, 1 B, 0 W");
  expect({"BFFB"}, "micro-batch 0 comes before");
  expect({"F2B2W"}, "2, 2 and 0 are wanted");
  Row huge(2, int64_t{1} << 30, 1, 1, 1);
  testing::code_of([&] { huge.run(); }, &text);
  EXPECT_NE(text.find("take larger ones"), std::string::npos) << text;
}

// Random graphs, partitions, degrees, micro-batch sizes, k, links, placements, shared devices.
struct Case {
  graph::Graph graph;
  Devices devices;
  Plan plan;
  bool raised = false;  // some in_flight is above GraphPipe's figure
};

Case random_case(uint64_t seed) {
  Rng rng(seed, 99);
  Case c;
  c.graph = graph::build_graph(fmt::format("random:{},{}", 1 + rng.below(12), seed));
  if (rng.below(4) == 0) {  // whole times, to make ties between events
    for (graph::Op& op : c.graph.ops) {
      op.cost.forward = {0, double(rng.below(3))};
      op.cost.backward_input = {0, double(rng.below(3))};
      op.cost.backward_weight = {0, double(rng.below(3))};
    }
  }
  if (rng.below(3) == 0 && c.graph.ops.size() > 1) {
    c.graph.ops[0].tied = c.graph.ops.back().tied = 0;
  }
  DeviceGroup group;
  if (rng.below(2) == 0) group.intra = group.inter = {double(1 + rng.below(1 << 20)), 0};
  const int nodes = 1 + static_cast<int>(rng.below(3)), per_node = 1 + int(rng.below(4));
  c.devices = uniform_devices(nodes * per_node, per_node, group);
  constexpr int64_t kBatches[] = {1, 4, 6, 12, 24};
  c.plan.batch = kBatches[rng.below(5)];
  c.plan.schedule = rng.below(2) == 0 ? ScheduleKind::kfkb : ScheduleKind::zero_bubble;
  // Consecutive parts of a topological order are convex, whatever the graph.
  const graph::Topology topology(c.graph);
  int free = c.devices.size();
  const int num = 1 + static_cast<int>(rng.below(std::min<uint32_t>(6, c.graph.ops.size())));
  const bool same = rng.below(2) == 0;
  const int64_t common = c.plan.batch;
  int64_t shared_size = 1;
  for (int64_t b = 1; b <= common; ++b) {
    if (common % b == 0 && rng.below(2) == 0) shared_size = b;
  }
  c.plan.stages.resize(num);
  for (size_t i = 0; i < c.graph.ops.size(); ++i) {
    c.plan.stages[i * num / c.graph.ops.size()].ops.push_back(topology.order()[i]);
  }
  const bool placed = rng.below(3) > 0;
  int used = 0;
  for (Stage& s : c.plan.stages) {
    std::sort(s.ops.begin(), s.ops.end());
    s.micro_batch = shared_size;
    if (!same) {
      do {
        s.micro_batch = 1 + rng.below(static_cast<uint32_t>(c.plan.batch));
      } while (c.plan.batch % s.micro_batch != 0);
    }
    s.k = 1 + static_cast<int>(rng.below(3));
    s.k = static_cast<int>(std::min<int64_t>(s.k, c.plan.batch / s.micro_batch));
    s.replicas = 1 + static_cast<int>(rng.below(3));
    s.tensor = rng.below(3) == 0 ? 2 : 1;
    if (s.micro_batch % s.replicas != 0) s.replicas = 1;
    s.shard_optimizer = rng.below(2) == 0;
    if (rng.below(3) == 0) s.recompute = {s.ops.front()};
    const int left = free - used;
    if (s.num_devices() > left) s.replicas = s.tensor = 1;
    if (placed && left >= 1) {
      for (int d = 0; d < s.num_devices(); ++d) s.devices.push_back(used++);
    } else if (placed) {
      s.replicas = s.tensor = 1;  // nothing left: take turns with a stage of one device, if any
    }
  }
  for (Stage& s : c.plan.stages) {
    if (!placed || !s.devices.empty()) continue;
    for (const Stage& other : c.plan.stages) {
      if (other.devices.empty() || s.micro_batch % other.replicas != 0) continue;
      s.replicas = other.replicas, s.tensor = other.tensor, s.devices = other.devices;
      break;
    }
    if (s.devices.empty()) {
      for (Stage& all : c.plan.stages) all.devices.clear();
    }
  }
  const std::vector<int64_t> w = in_flight_samples(stage_graph(c.graph, c.plan), c.plan);
  for (size_t s = 0; s < c.plan.stages.size(); ++s) {
    Stage& stage = c.plan.stages[s];
    stage.in_flight = w[s];
    if (rng.below(3) == 0) {
      c.raised = true;
      stage.in_flight = std::min(c.plan.batch, w[s] + stage.micro_batch * rng.below(3));
    }
  }
  return c;
}

TEST(Evaluate, EqualsTheSlowSimulationOnRandomPlans) {
  int compared = 0, shared = 0, bounded = 0, fixed = 0, by_the_byte = 0;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    Case c = random_case(seed);
    int64_t needed = 0;
    for (const Stage& s : c.plan.stages) needed += s.devices.empty() ? s.num_devices() : 0;
    if (needed > c.devices.size()) c.devices = uniform_devices(64, 4, c.devices.groups().front());
    SCOPED_TRACE(fmt::format("seed {}", seed));
    if (seed % 4 == 0) {
      Rng bytes(seed, 98);
      count_bytes(c.graph, bytes);
    }
    check(c.plan, c.graph, c.devices);
    const PlanCosts costs = plan_costs(c.graph, c.devices, c.plan);
    const Orders orders = make_orders(c.plan, costs);
    const Timeline fast = evaluate(c.plan, costs, orders, {.record = true});
    const Timeline slow = slow_evaluate(c.plan, costs, orders);
    ASSERT_EQ(fast.seconds, slow.seconds);
    ASSERT_EQ(fast.busy, slow.busy);
    for (size_t s = 0; s < fast.peak_memory.size(); ++s)  // added up in another order
      ASSERT_NEAR(fast.peak_memory[s], slow.peak_memory[s], 1e-12 * fast.peak_memory[s]);
    ASSERT_EQ(fast.peak_in_flight, slow.peak_in_flight);
    ASSERT_NEAR(fast.bubble, slow.bubble, 1e-12);
    if (!c.raised && c.plan.schedule == ScheduleKind::kfkb) {
      ASSERT_GE(evaluate(c.plan, costs, kfkb_orders(c.plan)).seconds, fast.seconds);
      ++fixed;
    }
    ++compared;
    shared += costs.num_units < static_cast<int>(c.plan.stages.size());

    // Memory as planners count it is what the evaluator sees.
    for (size_t s = 0; s < c.plan.stages.size(); ++s) {
      ASSERT_LE(fast.peak_in_flight[s], c.plan.stages[s].in_flight);
      if (costs.num_units != static_cast<int>(c.plan.stages.size())) continue;
      // Where weights have tasks of their own, gradients wait for them as well.
      const bool split = c.plan.schedule == ScheduleKind::zero_bubble;
      const double counted =
          costs.fixed_memory[s] + costs.held_per_sample[s] * double(fast.peak_in_flight[s]);
      if (c.graph.counted) {
        ++by_the_byte;
      } else if (split) {
        ASSERT_GE(fast.peak_memory[s], counted * (1 - 1e-12));
      } else {
        ASSERT_NEAR(fast.peak_memory[s], counted, 1e-12 * counted);
      }
      bounded += fast.peak_in_flight[s] == c.plan.stages[s].in_flight;
    }
    // Boxes of one unit never overlap; the file format keeps the plan and its time.
    std::vector<double> until(costs.num_units);
    for (const Box& b : fast.boxes) {
      if (b.kind > Box::Kind::backward_weight) continue;
      ASSERT_GE(b.start, until[costs.unit[b.stage]]);
      until[costs.unit[b.stage]] = b.end;
    }
    for (const auto& order : orders) c.plan.orders.push_back(to_letters(order));
    ASSERT_EQ(evaluate(c.graph, c.devices, c.plan).seconds, fast.seconds);
  }
  EXPECT_EQ(compared, 6000);
  EXPECT_GT(shared, 300);
  EXPECT_GT(bounded, 1000);
  EXPECT_GT(by_the_byte, 300);
  EXPECT_GT(fixed, 300);
}

TEST(Schedules, EveryRuleIsCarriedOutWithinTheCapAndNoneIsBetterThanTheBestKept) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Case c = random_case(seed);
    c.plan.schedule = ScheduleKind::zero_bubble;
    for (Stage& s : c.plan.stages) s.devices.clear();
    const PlanCosts costs = plan_costs(c.graph, c.devices, c.plan);
    const double best = evaluate(c.plan, costs, make_orders(c.plan, costs)).seconds;
    for (size_t rule = 0; rule < zero_bubble_priorities().size(); ++rule) {
      const Orders orders = zero_bubble_orders(c.plan, costs, rule);
      const Timeline t = evaluate(c.plan, costs, orders);
      EXPECT_GE(t.seconds, best);
      for (size_t s = 0; s < c.plan.stages.size(); ++s) {
        EXPECT_LE(t.peak_in_flight[s], c.plan.stages[s].in_flight);
      }
    }
  }
}

}  // namespace
}  // namespace ductile::plan
