#include "ductile/parallel/pipeline.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/parallel/draws.h"
#include "ductile/parallel/exact.h"
#include "ductile/parallel/tensor_tree.h"
#include "ductile/parallel/testing/random_pipelines.h"

namespace ductile::parallel {
namespace {

// DUCTILE_PIPELINE_MODELS: how many.
TEST(Pipeline, RandomModelsAndPlansEqualTheSerialExecutorAndPlainAutograd) {
  const char* const wanted = std::getenv("DUCTILE_PIPELINE_MODELS");
  const uint64_t models = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 300;
  uint64_t cut_to_the_bit = 0, plain_to_the_bit = 0, several_stages = 0;
  for (uint64_t seed = 0; seed < models; ++seed) {
    const std::string what = fmt::format("seed {}", seed);
    const bool dropout = seed % 3 == 0;
    RandomCase drawn(seed, 2, dropout, {1, 6});
    auto& [rng, model, operators, pipeline, step] = drawn;
    const int num_stages = drawn.num_stages();

    const Outcome serial = run_serial(model, operators, pipeline, step);
    several_stages += num_stages > 1;
    std::vector<int> hosts;
    const int num_ranks = 1 + static_cast<int>(rng.below(static_cast<uint32_t>(num_stages)));
    for (int s = 0; s < num_stages; ++s) {
      hosts.push_back(s < num_ranks ? s : static_cast<int>(rng.below(num_ranks)));
    }
    expect_equal(serial,
                 run_ranks(operators, pipeline, step, hosts, inproc_communicators(num_ranks)),
                 what + ", ranks");

    // Another cut: one stage.
    Pipeline whole;
    whole.num_micro_batches = pipeline.num_micro_batches;
    whole.stages.resize(1);
    for (size_t i = 0; i < operators.operators().size(); ++i) {
      whole.stages[0].ops.push_back(static_cast<int>(i));
    }
    for (int64_t m = 0; m < pipeline.num_micro_batches; ++m) {
      whole.stages[0].order.push_back(plan::Task::forward);
      whole.stages[0].order.push_back(plan::Task::backward);
    }
    const Outcome uncut = run_serial(model, operators, whole, step);
    if (one_order(operators, false)) {
      ++cut_to_the_bit;
      expect_equal(serial, uncut, what + ", uncut");
    } else {
      expect_near(serial, uncut, what + ", uncut");
    }
    if (dropout) continue;  // plain autograd draws other masks
    const Outcome plain = run_plain(model, step);
    if (one_order(operators, true)) {
      ++plain_to_the_bit;
      expect_equal(serial, plain, what + ", plain");
    } else {
      expect_near(serial, plain, what + ", plain");
    }
  }
  fmt::print(
      "{} models: {} of several stages; {} were held to the uncut one to the bit, {} to "
      "plain autograd to the bit, the others to 1e-5\n",
      models, several_stages, cut_to_the_bit, plain_to_the_bit);
  EXPECT_GT(cut_to_the_bit, models / 3);
  EXPECT_GT(plain_to_the_bit, models / 5);
  EXPECT_GT(several_stages, models / 2);
}

// Autograd over the whole model on each micro-batch, as virtual ranks do it.
Outcome run_as_ranks(nn::Model& model, const PipelineHost::Step& step) {
  Outcome out;
  std::map<std::string, TensorTree> sums;
  model.train(true);
  for (size_t m = 0; m < step.inputs.size(); ++m) {
    nn::seed_step(mix(step.seed, static_cast<uint64_t>(step.first_rank) + m));
    PipelineHost::Step one;
    one.inputs = {step.inputs[m]};
    Outcome of_one = run_plain(model, one);
    out.results.push_back(of_one.results.front());
    for (const auto& [name, value] : of_one.gradients) sums[name].push(value.clone());
  }
  for (const auto& [name, sum] : sums) out.gradients[name] = sum.sum();
  return out;
}

// DUCTILE_PIPELINE_MODELS: how many.
TEST(Pipeline, ExactPlansHaveTheBitsOfVirtualRanksOrAreRefused) {
  const char* const wanted = std::getenv("DUCTILE_PIPELINE_MODELS");
  const uint64_t models = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 300;
  uint64_t refused = 0, several_stages = 0;
  for (uint64_t seed = 0; seed < models; ++seed) {
    RandomCase drawn(seed, 5, seed % 3 == 0, {1, 9});
    auto& [rng, model, operators, pipeline, step] = drawn;
    pipeline.exact = true;
    step.first_rank = rng.below(5);
    try {
      check_exact(pipeline, operators, step.inputs[0]);
    } catch (const Error& e) {
      ++refused;
      EXPECT_FALSE(one_order(operators, true)) << "seed " << seed << ": " << e.what();
      EXPECT_NE(std::string(e.what()).find("train.pipeline_exact: operators "), std::string::npos);
      continue;
    }
    const Draws draws = draws_of(operators, step.inputs[0]);
    step.draws = &draws;
    several_stages += pipeline.stages.size() > 1;
    std::vector<int> hosts;
    const int num_stages = drawn.num_stages();
    const int num_ranks = 1 + static_cast<int>(rng.below(static_cast<uint32_t>(num_stages)));
    for (int s = 0; s < num_stages; ++s) {
      hosts.push_back(s < num_ranks ? s : static_cast<int>(rng.below(num_ranks)));
    }
    const Outcome plain = run_as_ranks(model, step);
    const Outcome exact =
        run_ranks(operators, pipeline, step, hosts, inproc_communicators(num_ranks));
    expect_equal(plain, exact, fmt::format("seed {}", seed));
    for (const auto& [name, value] : plain.gradients) {  // 0 and -0 are two
      EXPECT_TRUE(at::equal(at::signbit(value), at::signbit(exact.gradients.at(name)))) << name;
    }
  }
  fmt::print("{} models: {} refused; {} of several stages were held to autograd to the bit\n",
             models, refused, several_stages);
  if (wanted != nullptr) return;
  EXPECT_GT(several_stages, models / 4);
  EXPECT_GT(refused, models / 20);
}

std::vector<spec::SampleInput> several_inputs_of(std::string_view model) {
  if (model == "mmt") return spec::sample_inputs({"3*tokens:8:11"});
  if (model == "dlrm") return spec::sample_inputs({"2*vector:6", "2*indices:3:20"});
  if (model == "candle-uno") return spec::sample_inputs({"3*vector:6"});
  return {};
}

// Models of the zoo, cut in the middle, on two ranks, with and without split and recompute: the
// bits of autograd, running statistics too.
TEST(Pipeline, ModelsOfTheZooHaveTheBitsOfAutograd) {
  for (const char* name :
       {"mlp", "cnn", "resnet8", "unet", "airbench", "gpt", "mmt", "dlrm", "candle-uno"}) {
    nn::ModelArgs args;
    args.options.name = name;
    args.options.hidden = {12, 9};
    args.options.layers = 2;
    args.options.heads = 2;
    args.options.dim = 16;
    args.options.width = 8;
    args.options.convolutions = 3;
    const bool gpt = args.options.name == "gpt", unet = args.options.name == "unet";
    args.info = gpt ? nn::ModelInfo{0, 0, 0, 11, 8} : nn::ModelInfo{3, 32, 32, 10, 0};
    args.info.inputs = several_inputs_of(name);
    const auto model = nn::make_model(args);
    const nn::OperatorGraph operators = nn::training_operators(*model, 0);
    PipelineHost::Step step;
    at::manual_seed(5);
    for (int m = 0; m < 3; ++m) {
      if (!args.info.inputs.empty()) {
        nn::Tensors& inputs = step.inputs.emplace_back();
        for (const spec::SampleInput& input : args.info.inputs) {
          inputs.push_back(input.is_numbers()
                               ? at::randint(input.range, {8, input.length}, at::kLong)
                               : at::randn({8, input.length}));
        }
        inputs.push_back(at::randint(10, {8}, at::kLong));
      } else if (gpt) {
        step.inputs.push_back(
            {at::randint(11, {8, 8}, at::kLong), at::randint(11, {8, 8}, at::kLong)});
      } else {
        step.inputs.push_back(
            {at::randn({8, 3, 32, 32}),
             unet ? at::randint(10, {8, 32, 32}, at::kLong) : at::randint(10, {8}, at::kLong)});
      }
    }
    const auto buffers = [&] {
      Tensors out;
      for (const nn::NamedTensor& b : model->buffers()) out.push_back(b.tensor.clone());
      return out;
    };
    const Tensors before = buffers();
    const auto put_back = [&] {
      for (size_t i = 0; i < before.size(); ++i) model->buffers()[i].tensor.copy_(before[i]);
    };
    const Outcome plain = run_plain(*model, step);
    const Tensors moved = buffers();
    const auto number = static_cast<int>(operators.operators().size());
    for (const int cut : {1, number / 2, number - 1}) {
      for (const bool splits : {false, true}) {
        for (const bool recompute : {false, true}) {
          const std::string what =
              fmt::format("{} cut at {}, split {}, recompute {}", name, cut, splits, recompute);
          Pipeline pipeline = two_stages(operators, cut, 3);
          if (splits) pipeline = split(pipeline);
          if (recompute) {
            for (Pipeline::Stage& s : pipeline.stages) s.recompute = s.ops;
          }
          put_back();
          const Outcome got = run_ranks(operators, pipeline, step, {0, 1}, inproc_communicators(2));
          if (gpt) {
            expect_near(plain, got, what);  // its first and last operators share a weight
          } else {
            expect_equal(plain, got, what);
          }
          const Tensors now = buffers();
          for (size_t i = 0; i < now.size(); ++i) {
            EXPECT_TRUE(at::equal(now[i], moved[i])) << what << ": " << model->buffers()[i].name;
          }
        }
      }
    }
  }
}

// The rank of the first or of the last operator leaves in the middle of a step. Nobody waits for
// ever, and the survivors, who host its stages in its place, get the bits of the undisturbed step.
TEST(Pipeline, SurvivorsOfALossDoTheStepAgainWithTheSameBits) {
  int losses = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    RandomCase drawn(seed, 3, /*dropout=*/true, {4, 4});
    auto& [rng, model, operators, pipeline, step] = drawn;
    const int num_ranks = drawn.num_stages();
    if (num_ranks < 2) continue;
    std::vector<int> hosts;
    for (int s = 0; s < num_ranks; ++s) hosts.push_back(s);
    const int op = rng.below(2) == 0 ? 0 : static_cast<int>(operators.operators().size()) - 1;
    int lost = 0;
    while (std::ranges::count(pipeline.stages[static_cast<size_t>(lost)].ops, op) == 0) ++lost;
    ++losses;
    for (const RankOutcome& of_rank :
         run_threads(operators, pipeline, step, hosts, inproc_communicators(num_ranks), lost)) {
      EXPECT_NE(of_rank.error, "") << "seed " << seed;
    }
    for (int& host : hosts) {
      if (host == lost) host = (lost + 1) % num_ranks;
      if (host > lost) --host;  // survivors are numbered anew
    }
    expect_equal(run_serial(model, operators, pipeline, step),
                 run_ranks(operators, pipeline, step, hosts, inproc_communicators(num_ranks - 1)),
                 fmt::format("seed {}, rank {} lost", seed, lost));
  }
  EXPECT_GT(losses, 15);
}

// In half precision a sum of 256 equal numbers grows no further.
TEST(Pipeline, GradientsOfManyMicroBatchesAddUpInFullPrecision) {
  nn::ModelArgs args;
  args.options.name = "mlp";
  args.options.hidden = {12, 9};
  args.info = nn::ModelInfo{3, 8, 8, 10, 0};
  args.precision = "bf16";
  const auto model = nn::make_model(args);
  const nn::OperatorGraph operators = nn::training_operators(*model, 0);
  PipelineHost::Step step;
  at::manual_seed(5);
  const Tensors micro_batch = {at::randn({8, 3, 8, 8}), at::randint(10, {8}, at::kLong)};
  step.inputs = {micro_batch};
  const Outcome one = run_serial(*model, operators, two_stages(operators, 1, 1), step);
  constexpr int64_t kMany = 1024;
  step.inputs.assign(kMany, micro_batch);
  for (const bool splits : {false, true}) {
    Pipeline pipeline = two_stages(operators, 1, kMany);
    if (splits) pipeline = split(pipeline);
    const Outcome all = run_ranks(operators, pipeline, step, {0, 1}, inproc_communicators(2));
    ASSERT_EQ(all.gradients.size(), one.gradients.size());
    for (const auto& [name, gradient] : all.gradients) {
      EXPECT_TRUE(at::equal(gradient.to(at::kFloat), one.gradients.at(name).to(at::kFloat) * kMany))
          << name;
    }
  }
}

TEST(Pipeline, AMicroBatchIsHeldUntilItsLastTask) {
  RandomModel model(7, false);
  const nn::OperatorGraph operators = nn::training_operators(model, 0);
  std::vector<int> all;
  for (size_t i = 0; i < operators.operators().size(); ++i) all.push_back(static_cast<int>(i));
  StageExecutor executor(operators, all, {.split = true, .recompute = {}});
  const auto inputs = inputs_of(1, 1, 8)[0];
  const Tensors out = executor.forward(0, inputs);
  EXPECT_EQ(executor.num_held(), 1);
  EXPECT_THROW(executor.forward(0, inputs), Error);
  EXPECT_THROW(executor.backward_weights(0), Error);
  std::vector<std::vector<StageExecutor::Gradient>> gradients(out.size());
  gradients[0] = {{at::ones_like(out[0]), 1000}};
  executor.backward(0, gradients);
  EXPECT_THROW(executor.backward(0, gradients), Error);
  EXPECT_EQ(executor.num_held(), 1);
  executor.backward_weights(0);
  EXPECT_EQ(executor.num_held(), 0);
}

// y = x w in a stage of its own, of which each micro-batch has 8 x 8 floats of x and as many of y
// until its backward task.
TEST(Pipeline, MemoryIsCountedByStage) {
  const nn::OperatorGraph operators = scaled_and_lost(
      8, [](const at::Tensor& x, const at::Tensor& w) { return x * w; },
      [](const at::Tensor& y) { return y.sum(1); });
  PipelineHost::Placement all;
  all.hosts = {0, 0};
  const Tensors inputs = {at::ones({8, 8})};
  all.forms = tensor_forms(operators, inputs);
  std::map<std::string, int64_t> bytes;
  constexpr int64_t kMatrix = 8 * 8 * 4;
  for (const std::string order : {"F3B3", "FBFBFB"}) {
    Pipeline pipeline = two_stages(operators, 1, 3);
    pipeline.stages[0].order = spec::order_from_letters(order, 0, 100);
    pipeline.stages[1].order = spec::order_from_letters("FBFBFB", 1, 100);
    PipelineHost host(operators, pipeline, all);
    PipelineHost::Step step;
    step.inputs.assign(3, inputs);
    Trace trace;
    step.trace = &trace;
    host.run(step);
    EXPECT_EQ(trace.memory.size(), 2U);
    bytes[order] = trace.memory[0];
    EXPECT_GT(trace.memory[1], 0);
    EXPECT_LE(trace.memory[1], 2 * kMatrix);  // of losses, and one gradient of y
  }
  EXPECT_GE(bytes["FBFBFB"], 2 * kMatrix);
  EXPECT_EQ(bytes["F3B3"] - bytes["FBFBFB"], 2 * 2 * kMatrix);
}

TEST(Pipeline, RefusesPlansThatItCannotCarryOut) {
  RandomModel model(3, false);
  const nn::OperatorGraph operators = nn::training_operators(model, 0);
  const Pipeline good = two_stages(operators, 3, 2);
  EXPECT_NO_THROW(check(good, operators));
  Pipeline bad = good;
  bad.stages[0].ops.pop_back();
  EXPECT_THROW(check(bad, operators), Error);
  bad = good;
  bad.stages[1].ops.push_back(0);
  EXPECT_THROW(check(bad, operators), Error);
  bad = good;
  std::swap(bad.stages[0].ops.front(), bad.stages[1].ops.back());
  EXPECT_THROW(check(bad, operators), Error);  // a cycle
  bad = good;
  std::ranges::reverse(bad.stages[0].order);
  EXPECT_THROW(check(bad, operators), Error);
  bad = good;
  bad.stages[0].order.pop_back();
  EXPECT_THROW(check(bad, operators), Error);
  EXPECT_THROW(PipelineHost(operators, good, {{0, 1}, 0, nullptr, {}}), Error);
}

// Orders that are right by themselves and wait for each other would wait for ever on two workers.
TEST(Pipeline, OrdersThatWaitForOneAnotherAreAnError) {
  RandomModel model(3, false);
  const nn::OperatorGraph operators = nn::training_operators(model, 0);
  Pipeline pipeline = two_stages(operators, 3, 2);
  using plan::Task;
  // Stage 0 wants the first gradient before it sends what stage 1 reads first.
  pipeline.stages[0].order = {Task::forward, Task::backward, Task::forward, Task::backward};
  EXPECT_THROW(check(pipeline, operators), Error);
  pipeline.stages[1].order = pipeline.stages[0].order;
  EXPECT_NO_THROW(check(pipeline, operators));
}

}  // namespace
}  // namespace ductile::parallel
