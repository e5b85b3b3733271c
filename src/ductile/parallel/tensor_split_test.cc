// Stages that are divided among parts: the bits of the serial executor of the same plan on any
// ranks, and those of the undivided pipeline where no sum is cut.
#include "ductile/parallel/tensor_split.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/parallel/testing/random_pipelines.h"
#include "ductile/parallel/testing/random_splits.h"

namespace ductile::parallel {
namespace {

// Of whole parameters: slices of their gradients are joined.
Outcome undivided(const TensorSplit& split, Outcome outcome) {
  for (const auto& [name, slices] : split.slices) {
    Tensors gradients;
    for (const TensorSplit::Slice& slice : slices) {
      const auto found = outcome.gradients.find(slice.name);
      if (found == outcome.gradients.end()) continue;
      gradients.push_back(found->second);
      outcome.gradients.erase(found);
    }
    if (gradients.empty()) continue;
    EXPECT_EQ(gradients.size(), slices.size()) << name;
    outcome.gradients[name] = at::cat(gradients, slices.front().dim);
  }
  return outcome;
}

// The first ranks host a part each, and the others' parts any of them.
std::vector<int> random_hosts(int num_parts, int num_ranks, Rng& rng) {
  std::vector<int> out;
  for (int p = 0; p < num_parts; ++p) {
    out.push_back(p < num_ranks ? p
                                : static_cast<int>(rng.below(static_cast<uint32_t>(num_ranks))));
  }
  return out;
}

// All forward tasks first.
Pipeline in_other_letters(Pipeline pipeline) {
  const auto m = static_cast<size_t>(pipeline.num_micro_batches);
  for (Pipeline::Stage& stage : pipeline.stages) {
    stage.order.assign(m, plan::Task::forward);
    stage.order.insert(stage.order.end(), m, plan::Task::backward);
    if (pipeline.split) stage.order.insert(stage.order.end(), m, plan::Task::backward_weight);
  }
  return pipeline;
}

// DUCTILE_PIPELINE_MODELS: how many.
TEST(TensorSplit, RandomModelsAndPlansEqualTheSerialExecutorAndThePlainGradient) {
  const char* const wanted = std::getenv("DUCTILE_PIPELINE_MODELS");
  const uint64_t models = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 200;
  uint64_t divided = 0, several_ranks = 0;
  for (uint64_t seed = 0; seed < models; ++seed) {
    const std::string what = fmt::format("seed {}", seed);
    const bool dropout = seed % 3 == 0;
    RandomCase drawn(seed, 7, dropout, {1, 5});
    auto& [rng, model, operators, whole, step] = drawn;
    const TensorSplit split =
        split_tensors(operators, whole, random_degrees(operators, whole, rng));

    const Outcome serial = run_serial(model, split.graph, split.pipeline, step);
    const int num_ranks = 1 + static_cast<int>(rng.below(static_cast<uint32_t>(split.num_parts())));
    divided += split.slices.empty() ? 0 : 1;
    several_ranks += num_ranks > 1;
    const std::vector<int> hosts = hosts_of(split, random_hosts(split.num_parts(), num_ranks, rng));
    expect_equal(
        serial,
        run_ranks(split.graph, split.pipeline, step, hosts, inproc_communicators(num_ranks)),
        what + ", ranks");
    expect_equal(serial, run_serial(model, split.graph, in_other_letters(split.pipeline), step),
                 what + ", letters");
    if (dropout) continue;  // operators have other numbers, and so draw other masks
    const Outcome joined = undivided(split, serial);
    expect_near(run_serial(model, operators, whole, step), joined, what + ", undivided");
    expect_near(run_plain(model, step), joined, what + ", plain");
  }
  fmt::print("{} models: {} with divided stages, {} on several ranks\n", models, divided,
             several_ranks);
  EXPECT_GT(divided, models / 2);
  EXPECT_GT(several_ranks, models / 2);
}

struct ZooModel {
  std::unique_ptr<nn::Model> model;
  PipelineHost::Step step;
};

ZooModel zoo_model(const char* name) {
  nn::ModelArgs args;
  args.options.name = name;
  args.options.hidden = {12, 9};
  args.options.layers = 2;
  args.options.heads = 2;
  args.options.dim = 16;
  const bool gpt = args.options.name == "gpt";
  args.info = gpt ? nn::ModelInfo{0, 0, 0, 11, 8} : nn::ModelInfo{3, 32, 32, 10, 0};
  if (args.options.name == "mmt") args.info.inputs = spec::sample_inputs({"3*tokens:8:11"});
  if (args.options.name == "dlrm") {
    args.info.inputs = spec::sample_inputs({"2*vector:6", "2*indices:3:20"});
  }
  ZooModel out{nn::make_model(args), {}};
  at::manual_seed(5);
  for (int m = 0; m < 3; ++m) {
    Tensors& inputs = out.step.inputs.emplace_back();
    for (const spec::SampleInput& input : args.info.inputs) {
      inputs.push_back(input.is_numbers() ? at::randint(input.range, {8, input.length}, at::kLong)
                                          : at::randn({8, input.length}));
    }
    if (gpt) inputs.push_back(at::randint(11, {8, 8}, at::kLong));
    if (inputs.empty()) inputs.push_back(at::randn({8, 3, 32, 32}));
    inputs.push_back(gpt ? at::randint(11, {8, 8}, at::kLong) : at::randint(10, {8}, at::kLong));
  }
  return out;
}

TEST(TensorSplit, ModelsOfTheZooHaveTheLossesOfOneProcessToTheBit) {
  for (const char* name : {"mlp", "cnn", "gpt", "mmt", "dlrm"}) {
    const ZooModel zoo = zoo_model(name);
    const nn::OperatorGraph operators = nn::training_operators(*zoo.model, 0);
    const auto number = static_cast<int>(operators.operators().size());
    const Outcome plain = run_plain(*zoo.model, zoo.step);
    for (const std::vector<int64_t>& degrees : {std::vector<int64_t>{2, 3}, {4, 1}, {1, 2}}) {
      const std::string what = fmt::format("{} in {} and {} parts", name, degrees[0], degrees[1]);
      Pipeline whole = two_stages(operators, std::max(2, number / 2), 3);
      if (degrees[1] == 3) whole = split(whole);
      // The embeddings of dlrm and the convolutions of cnn are what the first parts have alone.
      std::vector<int64_t> possible = degrees;
      if (std::string(name) == "cnn") possible[0] = 1;
      const TensorSplit divided = split_tensors(operators, whole, possible);
      std::vector<int> by_part;
      for (int p = 0; p < divided.num_parts(); ++p) by_part.push_back(p);
      const Outcome serial = run_serial(*zoo.model, divided.graph, divided.pipeline, zoo.step);
      expect_equal(serial,
                   run_ranks(divided.graph, divided.pipeline, zoo.step, hosts_of(divided, by_part),
                             inproc_communicators(divided.num_parts())),
                   what);
      expect_near(plain, undivided(divided, serial), what);
    }
  }
}

// Where nobody wants the gradient of what the parts read, no sum is cut.
TEST(TensorSplit, ADividedFirstLayerHasTheBitsOfAutograd) {
  const ZooModel zoo = zoo_model("mlp");
  const nn::OperatorGraph operators = nn::training_operators(*zoo.model, 0);
  const Outcome plain = run_plain(*zoo.model, zoo.step);
  for (const int64_t parts : {2, 3, 4}) {
    const TensorSplit divided =
        split_tensors(operators, two_stages(operators, 1, 3), std::vector<int64_t>{parts, 1});
    EXPECT_EQ(divided.slices.size(), 2U);  // weight and bias
    expect_equal(
        plain,
        undivided(divided, run_serial(*zoo.model, divided.graph, divided.pipeline, zoo.step)),
        fmt::format("{} parts", parts));
  }
}

// The rank of one part leaves in the middle of a step; the others do the step again with its part.
TEST(TensorSplit, SurvivorsOfALostPartDoTheStepAgainWithTheSameBits) {
  for (const int lost : {0, 1, 2}) {  // the fourth reads no input whose lack would stop it
    const ZooModel zoo = zoo_model("mlp");
    const nn::OperatorGraph operators = nn::training_operators(*zoo.model, 0);
    const TensorSplit divided =
        split_tensors(operators, two_stages(operators, 2, 3), std::vector<int64_t>{2, 2});
    std::vector<int> by_part = {0, 1, 2, 3};
    for (const RankOutcome& of_rank :
         run_threads(divided.graph, divided.pipeline, zoo.step, hosts_of(divided, by_part),
                     inproc_communicators(4), lost)) {
      EXPECT_NE(of_rank.error, "") << "rank " << lost << " lost";
    }
    for (int& host : by_part) {
      if (host == lost) host = (lost + 1) % 4;
      if (host > lost) --host;
    }
    expect_equal(run_serial(*zoo.model, divided.graph, divided.pipeline, zoo.step),
                 run_ranks(divided.graph, divided.pipeline, zoo.step, hosts_of(divided, by_part),
                           inproc_communicators(3)),
                 fmt::format("rank {} lost", lost));
  }
}

TEST(TensorSplit, UndividedPipelinesStayAsTheyAre) {
  RandomModel model(3, false);
  const nn::OperatorGraph operators = nn::training_operators(model, 0);
  const Pipeline whole = two_stages(operators, 2, 2);
  const TensorSplit same = split_tensors(operators, whole, std::vector<int64_t>{1, 1});
  EXPECT_TRUE(same.slices.empty());
  EXPECT_EQ(same.graph.operators().size(), operators.operators().size());
  EXPECT_EQ(same.parts, (std::vector<int>{0, 1}));
  EXPECT_EQ(same.stages, (std::vector<int>{0, 1}));
  for (size_t s = 0; s < 2; ++s) EXPECT_EQ(same.pipeline.stages[s].ops, whole.stages[s].ops);
}

TEST(TensorSplit, SlicesAreViewsThatAreTrainedIfTheirParametersAre) {
  const ZooModel zoo = zoo_model("mlp");
  const nn::OperatorGraph operators = nn::training_operators(*zoo.model, 0);
  const TensorSplit divided =
      split_tensors(operators, two_stages(operators, 1, 3), std::vector<int64_t>{3, 1});
  const TensorSplit::Slice& last = divided.slices.at("fc1.weight").at(2);
  EXPECT_EQ(last.name, "fc1.weight/2");
  EXPECT_EQ(last.begin, 8);
  EXPECT_EQ(last.size(), 4);
  {
    const at::NoGradGuard no_grad;
    last.whole.fill_(3);
  }
  EXPECT_TRUE(at::equal(last.tensor, at::full_like(last.tensor, 3)));
  EXPECT_TRUE(last.tensor.requires_grad());
  last.whole.set_requires_grad(false);
  divided.follow();
  EXPECT_FALSE(last.tensor.requires_grad());
}

// The first part of a stage stands for it.
TEST(TensorSplit, ARecordedStepIsThatOfThePlansStages) {
  const ZooModel zoo = zoo_model("mlp");
  const nn::OperatorGraph operators = nn::training_operators(*zoo.model, 0);
  const TensorSplit divided =
      split_tensors(operators, two_stages(operators, 2, 3), std::vector<int64_t>{2, 2});
  PipelineHost::Step step = zoo.step;
  Trace recorded, shown;
  step.trace = &recorded;
  run_serial(*zoo.model, divided.graph, divided.pipeline, step);
  divided.add_trace(recorded, shown);
  std::vector<int64_t> forward(2, 0);
  for (const TraceInterval& i : shown.intervals) {
    ASSERT_TRUE(i.stage == 0 || i.stage == 1);
    forward[static_cast<size_t>(i.stage)] += i.kind == TraceInterval::Kind::forward;
  }
  EXPECT_GE(forward[0], 3);
  EXPECT_GE(forward[1], 3);
  EXPECT_LT(shown.intervals.size(), recorded.intervals.size());
  ASSERT_EQ(shown.memory.size(), 2U);
  EXPECT_GT(shown.memory.at(0), 0);
}

TEST(TensorSplit, WhatCannotBeDividedIsRefusedByName) {
  RandomModel model(3, false);
  const nn::OperatorGraph operators = nn::training_operators(model, 0);
  const auto refusal = [&](const Pipeline& pipeline, const std::vector<int64_t>& degrees) {
    try {
      split_tensors(operators, pipeline, degrees);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto number = static_cast<int>(operators.operators().size());
  const Pipeline loss_alone = two_stages(operators, number - 1, 2);
  EXPECT_EQ(refusal(loss_alone, {2, 1}), "");
  EXPECT_NE(refusal(loss_alone, {1, 2}).find("stage 1 is to be divided among 2 parts"),
            std::string::npos);
  EXPECT_NE(refusal(loss_alone, {9, 1}).find("at least as many columns as parts"),
            std::string::npos);
  EXPECT_NE(refusal(loss_alone, {2}).find("1 tensor degrees for 2 stages"), std::string::npos);
}

}  // namespace
}  // namespace ductile::parallel
