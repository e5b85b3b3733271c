#include "ductile/plan/baselines/megatron.h"

#include <gtest/gtest.h>

#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"

namespace ductile::plan {
namespace {

// The layout syntax once more, read: stages as their letters.
std::vector<std::string> expand(const std::string& text) {
  std::string flat;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string item(1, text[i]);
    if (text[i] == '(') {
      const size_t end = text.find(')', i);
      item = "";
      for (const std::string& s : expand(text.substr(i + 1, end - i - 1))) item += s + "|";
      item.pop_back();  // the text in brackets ends with a stage of no letters
      i = end;
    }
    int times = 1;
    if (i + 1 < text.size() && text[i + 1] == '*') {
      size_t used = 0;
      times = std::stoi(text.substr(i + 2), &used);
      i += 1 + used;
    }
    while (times-- > 0) flat += item;
  }
  std::vector<std::string> out(1);
  for (char c : flat) {
    if (c == '|') {
      out.emplace_back();
    } else if (c != ',') {
      out.back() += c;
    }
  }
  return out;
}

std::string layout_of(const std::string& options) {
  const size_t begin = options.find("layout \"") + 8;
  return options.substr(begin, options.find('"', begin) - begin);
}

TEST(Megatron, TheLayoutSaysWhichLayersEachStageHas) {
  const graph::Graph g = graph::build_graph("gpt:7,512,8,128,5000");
  Plan plan;
  plan.batch = 16;
  // Operators: embedding, three a layer, head.
  for (const auto& [from, to] : {std::pair{0, 4}, {4, 10}, {10, 16}, {16, 22}, {22, 23}}) {
    Stage& s = plan.stages.emplace_back();
    for (int v = from; v < to; ++v) s.ops.push_back(v);
    s.replicas = 2;
    s.micro_batch = s.in_flight = 4;
  }
  const std::string text = megatron_options(g, plan);
  EXPECT_EQ(layout_of(text), "Et|(tt|)*3L");
  EXPECT_NE(text.find("--pipeline-model-parallel-size 5 --num-layers 7 --micro-batch-size 2 "
                      "--global-batch-size 16"),
            std::string::npos)
      << text;
  EXPECT_EQ(expand("Et*3|(tt|)*29,m|L").size(), 32u);  // the example of its own help
}

TEST(Megatron, ItsBestPlanIsWrittenAndReadBack) {
  for (const char* spec : {"gpt:13,512,8,128,50000", "gpt:8,1024,8,256,30000,1"}) {
    SCOPED_TRACE(spec);
    const graph::Graph g = graph::build_graph(spec);
    const Devices devices = uniform_devices(8, 4, {});
    PlannerOptions options;
    options.batch = 32;
    const BaselineResult result = megatron_plan(g, devices, options);
    ASSERT_TRUE(result.ok()) << result.failure;
    const Plan& plan = result.plan;
    check(plan, g, devices);
    EXPECT_TRUE(evaluate(g, devices, plan).fits());
    const std::vector<std::string> stages = expand(layout_of(megatron_options(g, plan)));
    ASSERT_EQ(stages.size(), plan.stages.size());
    for (size_t i = 0; i < stages.size(); ++i) {
      size_t ops = 0;
      for (char c : stages[i]) ops += c == 't' && g.ops[1].kind == "attention" ? 3 : 1;
      EXPECT_EQ(ops, plan.stages[i].ops.size()) << i;
    }
  }
}

TEST(Megatron, ItsPlansHaveTheReplicasThatAreAskedFor) {
  const graph::Graph g = graph::build_graph("gpt:8,512,8,128,1000,1");
  const Devices devices = uniform_devices(8, 4, {});
  PlannerOptions options;
  options.batch = 32;
  for (const int replicas : {1, 2, 4, 8}) {
    SCOPED_TRACE(replicas);
    options.replicas = replicas;
    const BaselineResult result = megatron_plan(g, devices, options);
    ASSERT_TRUE(result.ok()) << result.failure;
    for (const Stage& stage : result.plan.stages) EXPECT_EQ(stage.replicas, replicas);
  }
  options.replicas = 3;
  std::string text;
  const auto refused = [&] {
    return testing::code_of([&] { megatron_plan(g, devices, options); }, &text) ==
           ErrorCode::invalid_argument;
  };
  EXPECT_TRUE(refused());
  EXPECT_NE(text.find("replicas: 3 do not divide the batch of 32"), std::string::npos) << text;
  options.batch = 30;
  EXPECT_TRUE(refused());
  EXPECT_NE(text.find("replicas: 3 do not divide the 8 devices"), std::string::npos) << text;
}

// A prime number: all at once do not fit, and one by one they are too many micro-batches.
TEST(Megatron, ALargeBatchIsRefusedAtOnce) {
  PlannerOptions options;
  options.batch = 100'000'007;
  const BaselineResult result = megatron_plan(graph::build_graph("gpt:8,512,8,128,1000,1"),
                                              uniform_devices(8, 4, {}), options);
  EXPECT_FALSE(result.timed_out);
  EXPECT_NE(result.failure.find("at most 20000000 micro-batches"), std::string::npos)
      << result.failure;
}

// One plan of single samples would take longer than there is time; others do not.
TEST(Megatron, WhatIsTooMuchForTheTimeDoesNotEndTheSearch) {
  PlannerOptions options;
  options.batch = 2 * 999'983;  // and a prime number
  options.time_limit = 20;
  DeviceGroup group;
  group.memory = 1e15;  // so that any number of samples fits
  const BaselineResult result = megatron_plan(graph::build_graph("gpt:8,512,8,128,1000,1"),
                                              uniform_devices(8, 4, group), options);
  ASSERT_TRUE(result.ok()) << result.failure;
  EXPECT_GT(result.plan.stages[0].micro_batch, 2);
}

TEST(Megatron, WhatItCannotRunIsNamed) {
  std::string text;
  const auto refused = [&](const graph::Graph& g, const Plan& plan) {
    return testing::code_of([&] { megatron_options(g, plan); }, &text) ==
           ErrorCode::invalid_argument;
  };
  const graph::Graph g = graph::build_graph("gpt:2,512,8,128,5000");
  Plan plan;
  plan.batch = 4;
  for (const auto& [from, to] : {std::pair{0, 2}, {2, 8}}) {
    Stage& s = plan.stages.emplace_back();
    for (int v = from; v < to; ++v) s.ops.push_back(v);
  }
  EXPECT_TRUE(refused(g, plan));
  EXPECT_NE(text.find("\"layer0.ff1\": its layer is cut in two"), std::string::npos) << text;
  plan.stages[0].replicas = 2;
  EXPECT_TRUE(refused(g, plan));
  EXPECT_NE(text.find("stage 1: has other degrees"), std::string::npos) << text;
  Plan whole;
  whole.stages.resize(1);
  const graph::Graph other = graph::build_graph("candle:2,2,128");
  for (OpId v = 0; v < static_cast<OpId>(other.ops.size()); ++v) whole.stages[0].ops.push_back(v);
  EXPECT_TRUE(refused(other, whole));
  EXPECT_NE(text.find("nothing else"), std::string::npos) << text;
}

}  // namespace
}  // namespace ductile::plan
