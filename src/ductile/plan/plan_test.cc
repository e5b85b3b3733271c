#include "ductile/plan/plan.h"

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/evaluate.h"

namespace ductile::plan {
namespace {

// A chain of operators, each a stage of one device.
struct Chain {
  graph::Graph graph;
  Plan plan;

  explicit Chain(const std::vector<int64_t>& micro_batches, int64_t batch) {
    plan.batch = batch;
    for (size_t i = 0; i < micro_batches.size(); ++i) {
      graph::Op op;
      op.name = fmt::format("op{}", i);
      graph.ops.push_back(op);
      if (i > 0) graph.edges.push_back({static_cast<OpId>(i) - 1, static_cast<OpId>(i)});
      Stage s;
      s.ops = {static_cast<OpId>(i)};
      s.micro_batch = micro_batches[i];
      s.in_flight = batch;
      plan.stages.push_back(s);
    }
  }
};

std::vector<int64_t> in_flight(const Chain& c) {
  return in_flight_samples(stage_graph(c.graph, c.plan), c.plan);
}

// The worked numbers of GraphPipe (arXiv 2406.17145, section 6) and of its stage files.
TEST(InFlight, IsGraphPipesFigure) {
  EXPECT_EQ(in_flight(Chain({4, 4, 4}, 64)), (std::vector<int64_t>{12, 8, 4}));
  EXPECT_EQ(in_flight(Chain({1, 2, 4}, 64)), (std::vector<int64_t>{10, 8, 4}));
  EXPECT_EQ(in_flight(Chain({64, 64, 64, 64, 64, 64}, 1024)),
            (std::vector<int64_t>{384, 320, 256, 192, 128, 64}));
  EXPECT_EQ(in_flight(Chain({64, 64, 64}, 128)), (std::vector<int64_t>{128, 128, 64}));
  EXPECT_EQ(in_flight(Chain({4, 1}, 64)), (std::vector<int64_t>{8, 1}));  // 5, rounded up
}

TEST(InFlight, FollowsTheLongestPathNotTheNumberOfStages) {
  Chain c({64, 64, 64, 64, 64, 64}, 1024);
  c.graph.edges = {{0, 4}, {1, 4}, {2, 4}, {3, 4}, {4, 5}};
  EXPECT_EQ(in_flight(c), (std::vector<int64_t>{192, 192, 192, 192, 128, 64}));
  c.plan.stages[5].k = 2;
  EXPECT_EQ(in_flight(c), (std::vector<int64_t>{320, 320, 320, 320, 256, 128}));
}

TEST(StageGraph, CountsATensorOncePerReader) {
  Chain c({1, 1}, 4);
  c.graph.ops.push_back(c.graph.ops[1]);
  c.graph.ops[2].name = "op2";
  c.plan.stages[1].ops = {1, 2};
  c.graph.edges = {{0, 1, 0, 10}, {0, 2, 0, 10}, {0, 2, 1, 5}, {1, 2, 0, 100}};
  const StageGraph g = stage_graph(c.graph, c.plan);
  ASSERT_EQ(g.edges.size(), 1u);
  EXPECT_EQ(g.edges[0].bytes, 15);
  EXPECT_EQ(boundary(c.graph, c.plan.stages[0].ops).out, 15);
  EXPECT_EQ(boundary(c.graph, c.plan.stages[1].ops).in, 15);
}

TEST(CheckPlan, NamesStageAndField) {
  const graph::Graph g = graph::build_graph("chain:4");
  const Devices devices = uniform_devices(8, 4, {});
  Plan good;
  good.batch = 8;
  for (int i = 0; i < 2; ++i) {
    Stage s;
    s.ops = {2 * i, 2 * i + 1};
    s.replicas = 2;
    s.micro_batch = 2;
    s.in_flight = 4;
    s.devices = {2 * i, 2 * i + 1};
    good.stages.push_back(s);
  }
  check(good, g, devices);
  const auto expect = [&](auto change, const char* what) {
    Plan p = good;
    change(p);
    std::string text;
    EXPECT_EQ(testing::code_of([&] { check(p, g, devices); }, &text), ErrorCode::invalid_argument);
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  expect([](Plan& p) { p.stages[1].micro_batch = 3; }, "stage 1: micro_batch is 3, it must divide");
  expect([](Plan& p) { p.stages[1].micro_batch = 1; }, "2 replicas cannot share it");
  expect([](Plan& p) { p.stages[0].in_flight = 3; }, "stage 0: in_flight is 3");
  expect([](Plan& p) { p.stages[0].k = 9; }, "stage 0: k is 9");
  expect([](Plan& p) { p.stages[0].ops = {0}; }, "\"op1\" is in no stage");
  expect([](Plan& p) { p.stages[0].ops = {0, 1, 2}; }, "in stage 0 too");
  expect([](Plan& p) { p.stages[0].ops = {0, 2}, p.stages[1].ops = {1, 3}; }, "circle");
  expect([](Plan& p) { p.stages[0].devices = {0, 9}; }, "names device 9, there are 8");
  expect([](Plan& p) { p.stages[0].devices = {0}; }, "devices has 1 entries");
  expect([](Plan& p) { p.stages[1].devices = {1, 2}; }, "shares device 1 with stage 0");
  expect([](Plan& p) { p.stages[0].recompute = {3}; }, "stage 0: recompute names operator 3");
  expect([](Plan& p) { p.stages[0].tensor = 32; }, "stage 0: tensor is 32");
  expect([](Plan& p) { p.orders = {"F"}; }, "orders has 1 entries");
  expect([](Plan& p) { p.stages.clear(); }, "no stages");
  Plan turns = good;
  turns.stages[1].devices = {1, 0};  // the same ones
  check(turns, g, devices);
  EXPECT_EQ(turns.num_devices(), 2);

  good.orders = {"F2BFBFB2", "FBFBFBFB"};
  good.stages[0].recompute = {1};
  EXPECT_EQ(plan_from_json(to_json(good, g), g, "p.json"), good);
  auto json = to_json(good, g);
  for (auto& stage : json["stages"]) stage.erase("in_flight");
  const Plan open = plan_from_json(json, g, "p.json");
  const std::vector<int64_t> samples = in_flight_samples(stage_graph(g, good), good);
  for (size_t s = 0; s < samples.size(); ++s) EXPECT_EQ(open.stages[s].in_flight, samples[s]);
  json["stages"][0].erase("micro_batch");
  EXPECT_EQ(plan_from_json(json, g, "p.json").stages[0].micro_batch, good.batch);
  json["stages"][1]["ops"][0] = "op9";
  std::string text;
  testing::code_of([&] { plan_from_json(json, g, "p.json"); }, &text);
  EXPECT_NE(text.find("p.json: stage 1: ops names the unknown operator \"op9\""), std::string::npos)
      << text;
}

TEST(PlanJson, HasAnOrderInAllStagesOrInNone) {
  const graph::Graph g = graph::build_graph("chain:2");
  Plan plan;
  plan.batch = 8;
  plan.stages.resize(2);
  for (int s = 0; s < 2; ++s) plan.stages[s].ops = {s};
  plan.orders = {"F2B2", "FBFB"};
  const auto all = to_json(plan, g);
  EXPECT_EQ(plan_from_json(all, g, "p.json").orders, plan.orders);
  for (const int without : {0, 1}) {
    auto some = all;
    some["stages"][without].erase("order");
    std::string text;
    EXPECT_EQ(testing::code_of([&] { plan_from_json(some, g, "p.json"); }, &text),
              ErrorCode::invalid_argument);
    EXPECT_NE(text.find(fmt::format("p.json: stage {} has no order, stage {} has one: give all "
                                    "stages one, or none",
                                    without, 1 - without)),
              std::string::npos)
        << text;
    some["stages"][1 - without].erase("order");
    EXPECT_TRUE(plan_from_json(some, g, "p.json").orders.empty());
  }
}

// Operators of equal names tell nothing: what a profile says of its model goes with its plans.
TEST(PlanJson, OfAnotherModelIsRefusedAndOfNoneAccepted) {
  graph::Graph g = graph::build_graph("chain:2");
  Plan plan;
  plan.batch = 8;
  plan.stages.resize(1);
  plan.stages[0].ops = {0, 1};
  const auto silent = to_json(plan, g);
  EXPECT_FALSE(silent.contains("model"));
  g.model = {"mine", "2 (ab)", "2 of 8 numbers (cd)", "float32 7"};
  EXPECT_EQ(plan_from_json(silent, g, "p.json"), plan);
  const auto told = to_json(plan, g);
  EXPECT_EQ(told.at("model").at("parameters"), "2 of 8 numbers (cd)");
  EXPECT_EQ(plan_from_json(told, g, "p.json"), plan);
  g.model.name = "renamed";
  EXPECT_EQ(plan_from_json(told, g, "p.json"), plan);
  g.model.parameters = "2 of 9 numbers (ce)";
  std::string text;
  EXPECT_EQ(testing::code_of([&] { plan_from_json(told, g, "p.json"); }, &text),
            ErrorCode::invalid_argument);
  EXPECT_NE(text.find("p.json: the plan is for another model (mine) than the graph (renamed): its "
                      "parameters are 2 of 8 numbers (cd), and those of this one 2 of 9 numbers"),
            std::string::npos)
      << text;
  EXPECT_EQ(plan_from_json(told, graph::build_graph("chain:2"), "p.json"), plan);
}

TEST(Devices, AreAViewOfTheClusterFile) {
  const spec::Cluster cluster = spec::parse_cluster(R"(
[[nodes]]
type = "v100"
count = 2
devices = 4
memory = "16 GiB"
flops = "14 TFLOP/s"
intra_bandwidth = "150 GB/s"
inter_bandwidth = "100 Gbit/s"
inter_latency = "10 us"
[[nodes]]
type = "a100"
name = "new"
flops = "56 TFLOP/s"
)",
                                                    "c.toml");
  const Devices d = devices_of(cluster);
  EXPECT_EQ(d.size(), 9);
  EXPECT_EQ(d.num_nodes(), 3);
  EXPECT_EQ(d.groups()[0].name, "v100");
  EXPECT_EQ(d.groups()[1].name, "new");
  EXPECT_EQ(d.groups()[0].memory, 16.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(d.groups()[0].inter.bandwidth, 12.5e9);
  EXPECT_DOUBLE_EQ(d.groups()[0].inter.latency, 1e-5);
  EXPECT_EQ(d.groups()[1].speed, 4);
  EXPECT_FALSE(d.is_uniform());
  EXPECT_EQ(d.within(std::vector{0, 3}).bandwidth, 150e9);
  EXPECT_EQ(d.within(std::vector{3, 4}).bandwidth, 12.5e9);
  EXPECT_EQ(d.between(std::vector{0}, std::vector{1}), d.groups()[0].intra);
  EXPECT_EQ(d.speed(std::vector{7, 8}), 1);
}

TEST(Devices, AreThoseThatAJobHolds) {
  const spec::Cluster cluster = spec::parse_cluster(
      "[[nodes]]\ntype = \"a\"\ncount = 4\ndevices = 8\n[[nodes]]\ntype = \"b\"\n", "c.toml");
  const Devices d = devices_of(cluster, spec::Allocation{{2, 8}, {3, 8}, {4, 1}, {0, 3}});
  ASSERT_EQ(d.groups().size(), 3u);
  EXPECT_EQ(d.groups()[0].nodes, 2);
  EXPECT_EQ(d.groups()[1].name, "b");
  EXPECT_EQ(d.groups()[2].devices_per_node, 3);
  EXPECT_EQ(d.size(), 20);
  const auto refused = [&](const spec::Allocation& held) {
    return testing::code_of([&] { devices_of(cluster, held); }, nullptr);
  };
  EXPECT_EQ(refused({}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused({{5, 1}}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused({{4, 2}}), ErrorCode::invalid_argument);
}

TEST(Devices, WithoutFiguresAreThoseOfTheDefaultGroup) {
  const Devices d = devices_of(spec::parse_cluster("[[nodes]]\ntype = \"device\"\n", "c.toml"));
  EXPECT_EQ(d.groups()[0], DeviceGroup{});
}

TEST(Devices, AreAtMostAMillion) {
  std::string text;
  EXPECT_EQ(testing::code_of(
                [] {
                  devices_of(spec::parse_cluster(
                      "[[nodes]]\ntype = \"a\"\ncount = 1048576\ndevices = 2\n", "c.toml"));
                },
                &text),
            ErrorCode::invalid_argument);
  EXPECT_NE(text.find("at most 1048576"), std::string::npos) << text;
}

TEST(Cost, TiedWeightsCountOnceInAStageAndAreSummedAcrossStages) {
  graph::Graph g;
  for (int i = 0; i < 2; ++i) {
    graph::Op op;
    op.name = fmt::format("op{}", i);
    op.tied = 0;
    op.cost.parameter_bytes = 1000;
    g.ops.push_back(op);
  }
  g.edges.push_back({0, 1, 0, 0});
  const auto inputs = graph::input_bytes(g);
  EXPECT_EQ(stage_sums(g, std::vector<OpId>{0, 1}, 1, {}, inputs).parameter_bytes, 1000);
  DeviceGroup group;
  group.intra = group.inter = {1000, 0};
  Plan p;
  for (int i = 0; i < 2; ++i) p.stages.emplace_back().ops = {i};
  const PlanCosts costs = plan_costs(g, uniform_devices(2, 2, group), p);
  ASSERT_EQ(costs.ties.size(), 1u);
  EXPECT_EQ(costs.ties[0].seconds, 1);  // 2 x 1/2 x 1000 bytes at 1000 bytes a second
  EXPECT_EQ(costs.fixed_memory[0], 2000);
}

TEST(Cost, ReplicasShareSamplesAndTheOptimiserIfSharded) {
  graph::Graph g;
  g.ops.resize(1);
  g.ops[0].name = "a";
  g.ops[0].cost.forward = {1, 2};
  g.ops[0].cost.parameter_bytes = 100;
  g.ops[0].cost.activation_bytes = 10;
  g.ops[0].cost.workspace_bytes = {0, 3};
  g.optimizer_factor = 2;
  const StageSums sums = stage_sums(g, std::vector<OpId>{0}, 1, {}, std::vector<double>{0});
  StageShape shape;
  shape.replicas = 4;
  shape.micro_batch = 8;
  shape.sync_link = {100, 0.25};
  EXPECT_EQ(stage_times(sums, shape).forward, 5);
  EXPECT_EQ(stage_times(sums, shape).sync, 2 * 0.75 + 4 * 0.25);
  EXPECT_EQ(stage_memory(sums, {1, 2}, shape, g, 16), 100 * 4 + 6 + 3 * 2 + 48);
  shape.shard_optimizer = true;
  EXPECT_EQ(stage_memory(sums, {1, 2}, shape, g, 16), 100 * 2.5 + 6 + 3 * 2 + 48);
}

TEST(Cost, WhatAMicroBatchHoldsWhateverItsSamplesCountsForEachInFlight) {
  graph::Graph g;
  g.ops.resize(1);
  g.ops[0].name = "a";
  g.ops[0].cost.forward = g.ops[0].cost.backward_input = {1, 0};
  g.ops[0].cost.activation_bytes = 10;
  g.ops[0].cost.activation_fixed = 500;
  const StageSums sums = stage_sums(g, std::vector<OpId>{0}, 1, {}, std::vector<double>{0});
  StageShape shape;
  shape.replicas = 2;
  shape.micro_batch = 4;
  for (const bool counted : {false, true}) {
    SCOPED_TRACE(counted);
    g.counted = counted;
    // Three micro-batches in flight; each device has half of the samples and all of the rest.
    EXPECT_EQ(stage_memory(sums, {}, shape, g, 12), 12 * 10 / 2 + 3 * 500);
  }
  // The judge, too: no more than one micro-batch is in flight here.
  g.counted = false;
  Plan p;
  p.batch = 8;
  p.stages.resize(1);
  p.stages[0].ops = {0};
  p.stages[0].micro_batch = p.stages[0].in_flight = 4;
  DeviceGroup group;
  group.memory = 539;
  EXPECT_EQ(evaluate(g, uniform_devices(1, 1, group), p).peak_memory[0], 4 * 10 + 500);
  EXPECT_FALSE(evaluate(g, uniform_devices(1, 1, group), p).fits());
  group.memory = 541;
  EXPECT_TRUE(evaluate(g, uniform_devices(1, 1, group), p).fits());
}

}  // namespace
}  // namespace ductile::plan
