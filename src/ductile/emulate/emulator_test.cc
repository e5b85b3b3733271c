#include "ductile/emulate/emulator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/planner.h"

namespace ductile::emulate {
namespace {

using Kind = plan::Box::Kind;

// Stages of one operator and one device each, which F, B and W take a second of, per sample.
struct Case {
  graph::Graph graph;
  plan::Plan plan;
  plan::Devices devices;

  explicit Case(int stages, int64_t batch) {
    plan.batch = batch;
    for (int i = 0; i < stages; ++i) {
      graph::Op op;
      op.name = fmt::format("op{}", i);
      op.cost.forward.per_sample = 1;
      op.cost.backward_input.per_sample = 1;
      op.cost.backward_weight.per_sample = 1;
      op.max_split = 8;
      graph.ops.push_back(op);
      plan::Stage s;
      s.ops = {i};
      s.devices = {i};
      s.in_flight = batch;
      plan.stages.push_back(s);
    }
    set_devices(std::max(stages, 8), {1, 0}, {1, 0});
  }
  void set_devices(int n, plan::Link intra, plan::Link inter, int per_node = 0) {
    plan::DeviceGroup group;
    group.intra = intra, group.inter = inter;
    devices = plan::uniform_devices(n, per_node > 0 ? per_node : n, group);
  }
  // Bytes per sample; 1 byte takes a second.
  Case& edge(int from, int to, double bytes) {
    graph.edges.push_back({from, to, 0, bytes});
    return *this;
  }
  Case& orders(std::vector<std::string> letters) {
    plan.orders = std::move(letters);
    return *this;
  }
  Emulation run(bool record = true) const {
    return carry_out(graph, devices, plan, 1, {.clock = Crew::Clock::simulated, .record = record});
  }
};

// "F0 0-1" for each task of a stage's replica: what began and ended when.
std::string tasks_of(const Emulation& e, int stage, int replica = 0) {
  std::string out;
  for (const Seen& s : e.seen) {
    if (s.stage != stage || s.replica != replica) continue;
    out += fmt::format("{}{}{} {:g}-{:g}", out.empty() ? "" : ", ", "FBW"[static_cast<int>(s.kind)],
                       s.index, s.begin, s.end);
  }
  return out;
}

std::string messages_of(const Emulation& e, Kind kind = Kind::transfer) {
  std::string out;
  for (const Seen& s : e.seen) {
    if (s.kind != kind) continue;
    out += fmt::format("{}{}>{} {:g}-{:g}", out.empty() ? "" : ", ", s.from, s.to, s.begin, s.end);
  }
  return out;
}

TEST(Emulator, TwoStagesOfOneForwardOneBackwardTakeTheirKnownTime) {
  Case c(2, 3);
  c.edge(0, 1, 0).orders({"F2BFB2", "FBFBFB"});
  const Emulation e = c.run();
  EXPECT_EQ(tasks_of(e, 0), "F0 0-1, F1 1-2, B0 4-6, F2 6-7, B1 7-9, B2 10-12");
  EXPECT_EQ(tasks_of(e, 1), "F0 1-2, B0 2-4, F1 4-5, B1 5-7, F2 7-8, B2 8-10");
  EXPECT_EQ(e.seconds, 12);  // 3 (m + p - 1)
  EXPECT_EQ(e.iterations, (std::vector<double>{12, 12}));
  EXPECT_EQ(e.busy[0], 0.75);
  EXPECT_EQ(e.busy[1], 0.75);
  EXPECT_EQ(e.busy[2], 0);
}

TEST(Emulator, AMessageTravelsWhileItsSenderComputes) {
  Case c(2, 2);
  c.edge(0, 1, 0.5).orders({"F2B2", "FBFB"});
  const Emulation e = c.run();
  EXPECT_EQ(tasks_of(e, 0), "F0 0-1, F1 1-2, B0 5-7, B1 8-10");
  EXPECT_EQ(tasks_of(e, 1), "F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5");
  EXPECT_EQ(messages_of(e), "0>1 1-1.5, 0>1 2-2.5, 1>0 4.5-5, 1>0 7.5-8");
}

TEST(Emulator, TheWeightPartIsATaskOfItsOwnIfTheOrdersSaySo) {
  Case c(2, 2);
  c.plan.schedule = plan::ScheduleKind::zero_bubble;
  c.edge(0, 1, 0).orders({"F2BWBW", "FBFBW2"});
  const Emulation e = c.run();
  EXPECT_EQ(tasks_of(e, 0), "F0 0-1, F1 1-2, B0 3-4, W0 4-5, B1 5-6, W1 6-7");
  EXPECT_EQ(tasks_of(e, 1), "F0 1-2, B0 2-3, F1 3-4, B1 4-5, W0 5-6, W1 6-7");
}

TEST(Emulator, AJoinWaitsForBothBranchesWhichRunSideBySide) {
  Case c(3, 1);
  c.graph.ops[1].cost.forward.per_sample = 4;
  c.edge(0, 2, 1).edge(1, 2, 1).orders({"FB", "FB", "FB"});
  const Emulation e = c.run();
  EXPECT_EQ(tasks_of(e, 0), "F0 0-1, B0 9-11");
  EXPECT_EQ(tasks_of(e, 1), "F0 0-4, B0 10-12");  // its gradient is the second on the card of 2
  EXPECT_EQ(tasks_of(e, 2), "F0 5-6, B0 6-8");
  EXPECT_EQ(messages_of(e), "0>2 1-2, 1>2 4-5, 2>0 8-9, 2>1 9-10");
}

TEST(Emulator, MessagesToOneCardFollowOneAnother) {
  Case c(3, 1);
  c.edge(0, 2, 3).edge(1, 2, 3).orders({"FB", "FB", "FB"});
  const Emulation e = c.run();
  // Both become ready at 1; the receiving card of device 2 takes one of them first.
  EXPECT_EQ(messages_of(e), "0>2 1-4, 1>2 4-7, 2>0 10-13, 2>1 13-16");
  EXPECT_EQ(tasks_of(e, 2), "F0 7-8, B0 8-10");
  EXPECT_EQ(e.seconds, 18);
}

TEST(Emulator, EachReplicaSendsToThoseThatReadItsSamples) {
  Case c(2, 4);
  c.plan.stages[0].replicas = 2, c.plan.stages[0].devices = {0, 1};
  c.plan.stages[1].devices = {2};
  c.plan.stages[0].micro_batch = 4, c.plan.stages[1].micro_batch = 4;
  c.edge(0, 1, 1).orders({"FB", "FB"});
  const Emulation e = c.run();
  EXPECT_EQ(tasks_of(e, 0, 0), "F0 0-2, B0 20-24");  // 2 samples: 2 s; gradients from 18 on
  EXPECT_EQ(tasks_of(e, 0, 1), "F0 0-2, B0 22-26");
  EXPECT_EQ(tasks_of(e, 1), "F0 6-10, B0 10-18");
  EXPECT_EQ(messages_of(e), "0>2 2-4, 1>2 4-6, 2>0 18-20, 2>1 20-22");
}

TEST(Emulator, WhoSendsToTheSameDevicesDoesNotBeginWithTheSameOne) {
  Case c(3, 2);
  c.plan.stages[2].replicas = 2, c.plan.stages[2].devices = {2, 3};
  for (plan::Stage& s : c.plan.stages) s.micro_batch = 2;
  c.edge(0, 2, 1).edge(1, 2, 1).orders({"FB", "FB", "FB"});
  const Emulation e = c.run();
  // Both devices of stage 2 receive from 2 to 4, and send from 7 to 9, without a pause.
  EXPECT_EQ(tasks_of(e, 0), "F0 0-2, B0 9-13");
  EXPECT_EQ(tasks_of(e, 1), "F0 0-2, B0 9-13");
  EXPECT_EQ(tasks_of(e, 2, 0), "F0 4-5, B0 5-7");
  EXPECT_EQ(tasks_of(e, 2, 1), "F0 4-5, B0 5-7");
}

TEST(Emulator, MicroBatchesOfDifferentSizesMeetInTheirSamples) {
  Case c(2, 4);
  c.plan.stages[0].micro_batch = 1, c.plan.stages[1].micro_batch = 2;
  c.edge(0, 1, 1).orders({"F4B4", "FBFB"});
  const Emulation e = c.run();
  EXPECT_EQ(tasks_of(e, 1), "F0 3-5, B0 5-9, F1 9-11, B1 11-15");  // after two messages of 1
  EXPECT_EQ(tasks_of(e, 0),
            "F0 0-1, F1 1-2, F2 2-3, F3 3-4, B0 10-12, B1 12-14, B2 16-18, B3 18-20");
}

TEST(Emulator, DevicesOfASplitStageSendTheirSharesSideBySide) {
  Case c(2, 1);
  c.plan.stages[0].tensor = 2, c.plan.stages[0].devices = {0, 1};
  c.plan.stages[1].tensor = 2, c.plan.stages[1].devices = {2, 3};
  c.edge(0, 1, 4).orders({"FB", "FB"});
  const Emulation e = c.run();
  const plan::StageTimes t = plan::plan_costs(c.graph, c.devices, c.plan).times[0];
  EXPECT_EQ(
      messages_of(e),
      fmt::format("0>2 {0:g}-{1:g}, 1>3 {0:g}-{1:g}, 2>0 {2:g}-{3:g}, 3>1 {2:g}-{3:g}", t.forward,
                  t.forward + 2, 2 * t.forward + 2 + t.backward_input + t.backward_weight,
                  2 * t.forward + 4 + t.backward_input + t.backward_weight));
}

TEST(Emulator, ThirdGradientsWaitUntilTheFirstHaveLeft) {
  Case c(2, 4);
  c.graph.ops[1].cost.backward_input.per_sample = 0;
  c.graph.ops[1].cost.backward_weight.per_sample = 0;
  c.graph.ops[1].cost.forward.per_sample = 0;
  c.edge(0, 1, 5).orders({"F4B4", "F4B4"});
  const Emulation e = c.run();
  // Forward messages arrive at 6, 11, 16, 21. B0 and B1 at 21; B2 when the gradients of 0 have
  // left.
  EXPECT_EQ(tasks_of(e, 1),
            "F0 6-6, F1 11-11, F2 16-16, F3 21-21, B0 21-21, B1 21-21, B2 26-26, B3 31-31");
}

TEST(Emulator, ReplicasSumTheirGradientsInARingAfterTheLastTask) {
  Case c(1, 4);
  c.plan.stages[0].replicas = 4, c.plan.stages[0].micro_batch = 4;
  c.plan.stages[0].devices = {0, 1, 2, 3};
  c.graph.ops[0].cost.parameter_bytes = 8;
  c.orders({"FB"});
  const Emulation e = c.run();
  EXPECT_EQ(e.seconds, 3 + 6 * 2);  // 6 rounds of 2 bytes
  EXPECT_EQ(messages_of(e, Kind::sync).substr(0, 36), "0>1 3-5, 1>2 3-5, 2>3 3-5, 3>0 3-5, ");
}

TEST(Emulator, ARingIsAsSlowAsItsSlowestLink) {
  Case c(1, 4);
  c.plan.stages[0].replicas = 4, c.plan.stages[0].micro_batch = 4;
  c.plan.stages[0].devices = {0, 1, 2, 3};
  c.graph.ops[0].cost.parameter_bytes = 8;
  c.set_devices(4, {1000, 0}, {1, 0}, 2);
  c.orders({"FB"});
  EXPECT_EQ(c.run().seconds, 3 + 6 * 2);  // though only the links 1-2 and 3-0 are slow
}

TEST(Emulator, StagesThatShareAWeightSumItWhenAllHaveEnded) {
  Case c(2, 1);
  c.graph.ops[0].tied = c.graph.ops[1].tied = 5;
  c.graph.ops[0].cost.parameter_bytes = c.graph.ops[1].cost.parameter_bytes = 6;
  c.edge(0, 1, 0).orders({"FB", "FB"});
  const Emulation e = c.run();
  EXPECT_EQ(e.seconds, 6 + 6);  // two rounds of 3 bytes
  EXPECT_EQ(messages_of(e, Kind::sync), "1>0 4-7, 0>1 6-9, 0>1 9-12, 1>0 9-12");
}

TEST(Emulator, StagesOfEqualDevicesTakeTurnsBackwardFirst) {
  Case c(3, 2);
  for (plan::Stage& s : c.plan.stages) s.devices = {0};
  c.edge(0, 1, 100).edge(1, 2, 100).orders({"F2B2", "F2B2", "FBFB"});
  const Emulation e = c.run();
  EXPECT_EQ(e.seconds, 18);
  EXPECT_EQ(messages_of(e), "");
  EXPECT_EQ(tasks_of(e, 2), "F0 2-3, B0 3-5, F1 11-12, B1 12-14");
}

TEST(Emulator, OrdersThatWaitForOneAnotherAreRefusedAndSayWho) {
  Case c(2, 2);
  c.edge(0, 1, 1).orders({"FBFB", "F2B2"});
  for (const Crew::Clock clock : {Crew::Clock::simulated, Crew::Clock::real}) {
    const std::string text = testing::text_of(
        [&] { carry_out(c.graph, c.devices, c.plan, 1, {.clock = clock, .seconds = 0.05}); });
    EXPECT_NE(text.find("stage 0, replica 0 waits for the gradients of micro-batch 0; stage 1, "
                        "replica 0 waits for the inputs of micro-batch 1"),
              std::string::npos)
        << text;
  }
  c.orders({"F2B2", "F2B"});
  EXPECT_NE(testing::text_of([&] { c.run(); }).find("stage 1: order: has 2 F, 1 B"),
            std::string::npos);
}

TEST(Emulator, APlanWithoutDevicesIsRefused) {
  Case c(2, 2);
  for (plan::Stage& s : c.plan.stages) s.devices.clear();
  EXPECT_NE(testing::text_of([&] { c.run(); }).find("stage 0: devices: has none"),
            std::string::npos);
}

// Of plans with replicas, splits and branches: the letters of each replica, as they were seen.
std::string letters_of(const Emulation& e, int stage, int replica) {
  std::vector<plan::Task> order;
  for (const Seen& s : e.seen) {
    if (s.stage == stage && s.replica == replica) {
      order.push_back(static_cast<plan::Task>(s.kind));
    }
  }
  return plan::to_letters(order);
}

// The number of pairs of tasks on two sides of an edge that have samples in common; of each the
// second must not begin before the first has ended.
int count_in_order(const Emulation& e, const plan::Plan& plan, const plan::StageEdge& edge) {
  int pairs = 0;
  const auto samples_of = [&](const Seen& s) {
    const plan::Stage& stage = plan.stages[s.stage];
    const int64_t each = stage.micro_batch / stage.replicas;
    const int64_t first = s.index * stage.micro_batch + s.replica * each;
    return std::pair(first, first + each);
  };
  for (const Seen& a : e.seen) {
    for (const Seen& b : e.seen) {
      const bool forward = a.kind == Kind::forward && a.stage == edge.from;
      const bool backward = a.kind == Kind::backward && a.stage == edge.to;
      if (!forward && !backward) continue;
      if (b.kind != a.kind || b.stage != (forward ? edge.to : edge.from)) continue;
      const auto [first, end] = samples_of(a);
      const auto [other, other_end] = samples_of(b);
      if (first >= other_end || other >= end) continue;
      EXPECT_GE(b.begin, a.end) << "stage " << b.stage << " after " << a.stage;
      ++pairs;
    }
  }
  return pairs;
}

TEST(Emulator, OnTheRealClockEachDeviceObeysItsLettersAndNothingComesTooEarly) {
  plan::PlannerOptions options;
  options.batch = 32;
  options.micro_batches = {4};
  const plan::Devices devices = plan::find_devices("8");
  bool has_replicas = false;
  for (const char* name : {"candle:4", "mmt:4,2"}) {
    SCOPED_TRACE(name);
    const graph::Graph graph = graph::build_graph(name, devices.groups().front().model);
    const plan::Planned planned = plan::make_plan(graph, devices, options);
    ASSERT_TRUE(planned.feasible);
    const plan::Plan& plan = planned.plan;
    const Emulation e = carry_out(graph, devices, plan, planned.simulated_seconds,
                                  {.seconds = 0.2, .iterations = 1, .record = true});
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      for (int r = 0; r < plan.stages[s].replicas; ++r) {
        EXPECT_EQ(letters_of(e, static_cast<int>(s), r), plan.orders[s]);
        has_replicas = has_replicas || r > 0;
      }
    }
    for (const plan::StageEdge& edge : plan::stage_graph(graph, plan).edges) {
      EXPECT_GE(count_in_order(e, plan, edge), 2 * plan.batch / plan.stages[0].micro_batch);
    }
    EXPECT_EQ(e.iterations.size(), 1u);
    EXPECT_GT(e.lateness.sleeps, 0);
    const double clock = e.seconds * e.scale;  // of an iteration, in which many sleeps follow
    EXPECT_GT(e.late_share, 2 * e.lateness.mean / clock);
  }
  EXPECT_TRUE(has_replicas);
}

// One device a stage and no bytes: judge and emulation then have the same rules, and neither
// copies the other's.
TEST(Emulator, WithoutMessagesTheSimulatedClockAgreesWithTheJudgeToTheLastDigits) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    graph::Graph graph = graph::build_graph(fmt::format("random:{},{}", 3 + seed % 10, seed));
    for (graph::Edge& e : graph.edges) e.bytes = 0;
    for (graph::Op& op : graph.ops) op.cost.parameter_bytes = 0;
    // Consecutive parts of a topological order, each on a device of its own.
    const graph::Topology topology(graph);
    plan::Plan plan;
    plan.batch = 8;
    if (seed % 2 != 0) plan.schedule = plan::ScheduleKind::zero_bubble;
    plan.stages.resize(std::min<size_t>(4, graph.ops.size()));
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      const size_t s = i * plan.stages.size() / graph.ops.size();
      plan.stages[s].ops.push_back(topology.order()[i]);
      plan.stages[s].devices = {static_cast<int>(s)};
    }
    for (plan::Stage& s : plan.stages) std::sort(s.ops.begin(), s.ops.end());
    const std::vector<int64_t> in_flight =
        plan::in_flight_samples(plan::stage_graph(graph, plan), plan);
    for (size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].in_flight = in_flight[s];
    const plan::Devices devices = plan::find_devices("4");
    const double predicted = plan::evaluate(graph, devices, plan).seconds;
    const Emulation e =
        carry_out(graph, devices, plan, 1, {.clock = Crew::Clock::simulated, .iterations = 1});
    EXPECT_NEAR(e.seconds, predicted, 1e-9 * predicted) << "seed " << seed;
    ++compared;
  }
  EXPECT_EQ(compared, 60);
}

TEST(Emulator, TheSameRunOnTheSimulatedClockHasTheSameBits) {
  const plan::Devices devices = plan::find_devices("16");
  const graph::Graph graph = graph::build_graph("dlrm", devices.groups().front().model);
  plan::PlannerOptions options;
  options.batch = 256;
  options.micro_batches = {16};
  const plan::Planned planned = plan::make_plan(graph, devices, options);
  const auto run = [&] {
    return carry_out(graph, devices, planned.plan, 1, {.clock = Crew::Clock::simulated});
  };
  EXPECT_EQ(run().iterations, run().iterations);
  EXPECT_EQ(run().busy, run().busy);
}

TEST(Emulator, ItsJsonHasTheDifference) {
  Emulation e;
  e.seconds = 1.02;
  const auto json = to_json(e, 1.0);
  EXPECT_NEAR(json["difference"].get<double>(), 0.02, 1e-12);
}

}  // namespace
}  // namespace ductile::emulate
