// Stages with numbers of replicas of their own.

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/testing/random_parts.h"

namespace ductile::parallel {
namespace {

// Of all parts together: the sum of the gradients, and a stage's losses in the order of samples.
Outcome whole_of(const PartOutcomes& parts) {
  Outcome out;
  for (const auto& [part, own] : parts) {
    for (const auto& [name, gradient] : own.gradients) {
      at::Tensor& sum = out.gradients[name];
      sum = sum.defined() ? sum + gradient : gradient;
    }
    for (size_t m = 0; m < own.results.size(); ++m) {
      if (out.results.size() <= m) out.results.emplace_back(1);
      at::Tensor& losses = out.results[m][0];
      losses = losses.defined() ? at::cat({losses, own.results[m][0]}) : own.results[m][0];
    }
  }
  return out;
}

void expect_close(const Outcome& a, const Outcome& b, const std::string& what) {
  const auto close = [&](const at::Tensor& x, const at::Tensor& y, const std::string& name) {
    ASSERT_TRUE(x.sizes() == y.sizes()) << what << ", " << name;
    const double scale = std::max(1e-6, x.abs().max().item<double>());
    EXPECT_LE((x - y).abs().max().item<double>(), 1e-5 * scale) << what << ", " << name;
  };
  ASSERT_EQ(a.results.size(), b.results.size()) << what;
  for (size_t m = 0; m < a.results.size(); ++m) close(a.results[m][0], b.results[m][0], "losses");
  ASSERT_EQ(a.gradients.size(), b.gradients.size()) << what;
  for (const auto& [name, value] : a.gradients) close(value, b.gradients.at(name), name);
}

PipelineHost::Step share_of_step(const PipelineHost::Step& step, int replica, int replicas) {
  PipelineHost::Step out;
  for (const Tensors& in : step.inputs) {
    Tensors& own = out.inputs.emplace_back();
    for (const at::Tensor& t : in) {
      const int64_t count = t.size(0) / replicas;
      own.push_back(t.narrow(0, replica * count, count).clone());
    }
  }
  return out;
}

// Where all stages have as many replicas, each is autograd on its own samples, whose mean loss is
// the micro-batch's times their number: a power of two, which rounds nothing.
void expect_replicas_of_plain(nn::Model& model, const PartOutcomes& parts, const Pipeline& pipeline,
                              const PipelineHost::Step& step, const std::string& what) {
  const int replicas = pipeline.stages[0].replicas;
  const std::vector<StagePart> all = parts_of(pipeline);
  for (int r = 0; r < replicas; ++r) {
    const Outcome plain = run_plain(model, share_of_step(step, r, replicas));
    size_t found = 0;
    for (const auto& [part, own] : parts) {
      if (all[static_cast<size_t>(part)].replica != r) continue;
      for (const auto& [name, gradient] : own.gradients) {
        ++found;
        EXPECT_TRUE(at::equal(gradient * replicas, plain.gradients.at(name)))
            << what << ", replica " << r << ", " << name;
      }
    }
    EXPECT_EQ(found, plain.gradients.size()) << what;
  }
}

// DUCTILE_PIPELINE_MODELS: how many.
TEST(StageParts, RandomNumbersOfReplicasHaveTheBitsOfTheSerialExecutorAndAreNearAutograd) {
  const char* const wanted = std::getenv("DUCTILE_PIPELINE_MODELS");
  const uint64_t models = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 200;
  uint64_t uneven = 0, to_the_bit = 0;
  for (uint64_t seed = 0; seed < models; ++seed) {
    const std::string what = fmt::format("seed {}", seed);
    const bool dropout = seed % 3 == 0;
    RandomJob job(seed, dropout);
    uneven += std::ranges::any_of(job.pipeline.stages, [&](const Pipeline::Stage& s) {
      return s.replicas != job.pipeline.stages[0].replicas;
    });
    const PartOutcomes serial = run_serial_parts(job.operators, job.pipeline, job.step);
    const int num_ranks =
        1 + static_cast<int>(job.rng.below(static_cast<uint32_t>(std::min(4, job.num_parts))));
    expect_same(serial,
                run_parts(job.operators, job.pipeline, job.step, job.random_hosts(num_ranks),
                          inproc_communicators(num_ranks)),
                what);
    if (dropout) continue;  // plain autograd draws other masks
    expect_close(run_plain(job.model, job.step), whole_of(serial), what);
    if (!job.is_even || !one_order(job.operators, true)) continue;
    ++to_the_bit;
    expect_replicas_of_plain(job.model, serial, job.pipeline, job.step, what);
  }
  fmt::print("{} models: {} of stages with other numbers of replicas; {} held to the bit\n", models,
             uneven, to_the_bit);
  EXPECT_GT(uneven, models / 4);
  EXPECT_GT(to_the_bit, models / 20);
}

TEST(StageParts, ReplicasDrawRandomNumbersOfTheirOwn) {
  const nn::OperatorGraph operators = scaled_and_lost(
      64, [](const at::Tensor& x, const at::Tensor& w) { return at::dropout(x * w, 0.5, true); },
      [](const at::Tensor& y) { return y.sum(1); }, /*random=*/true);
  Pipeline pipeline = two_stages(operators, 1, 1);
  pipeline.stages[0].replicas = 2;
  PipelineHost::Step step;
  step.inputs = {{at::ones({4, 64})}};
  step.seed = 3;
  const PartOutcomes parts = run_serial_parts(operators, pipeline, step);
  const at::Tensor losses = parts.at(2).results.at(0).at(0);  // of the two replicas' samples
  ASSERT_EQ(losses.size(0), 4);
  EXPECT_FALSE(at::equal(losses.narrow(0, 0, 2), losses.narrow(0, 2, 2)));
}

// A rank that leaves in the middle of a step makes nobody wait for ever, and its parts give the
// same bits with the survivors.
TEST(StageParts, SurvivorsOfALossDoTheStepAgainWithTheSameBits) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RandomJob job(seed, true);
    const int num_ranks = std::min(4, job.num_parts);
    // Who reads samples or labels misses those that it does not get.
    std::vector<int> hosts = job.random_hosts(num_ranks);
    const std::vector<StagePart> parts = parts_of(job.pipeline);
    const std::vector<int> stages = stages_of_operators(job.pipeline, job.operators);
    const auto first = std::ranges::find(parts, stages[0], &StagePart::stage);
    const int lost = hosts[static_cast<size_t>(first - parts.begin())];
    if (job.pipeline.num_micro_batches > 1) {
      (void)run_parts(job.operators, job.pipeline, job.step, hosts, inproc_communicators(num_ranks),
                      lost);
    }
    for (int& host : hosts) {
      if (host == lost) host = (lost + 1) % num_ranks;
      if (host > lost) --host;  // survivors are numbered anew
    }
    expect_same(run_serial_parts(job.operators, job.pipeline, job.step),
                run_parts(job.operators, job.pipeline, job.step, hosts,
                          inproc_communicators(num_ranks - 1)),
                fmt::format("seed {}", seed));
  }
}

// Replicas that share a model begin with its running statistics, move them by their own samples,
// and leave them as they were.
TEST(StageParts, EachReplicaMovesRunningStatisticsByItsOwnSamples) {
  nn::ModelArgs args;
  args.options.name = "resnet8";
  args.options.width = 4;
  args.info = nn::ModelInfo{3, 32, 32, 10, 0};
  const auto model = nn::make_model(args);
  model->train(true);
  const nn::OperatorGraph operators = nn::training_operators(*model, 0);
  at::manual_seed(5);
  PipelineHost::Step step;
  for (int m = 0; m < 3; ++m) {
    step.inputs.push_back({at::randn({8, 3, 32, 32}), at::randint(10, {8}, at::kLong)});
  }
  std::map<std::string, at::Tensor> before;
  for (const nn::NamedTensor& b : model->buffers()) before[b.name] = b.tensor.clone();
  ASSERT_FALSE(before.empty());
  const auto number = static_cast<int>(operators.operators().size());
  for (const bool recompute : {false, true}) {
    Pipeline pipeline = two_stages(operators, number / 2, 3);
    for (Pipeline::Stage& s : pipeline.stages) {
      s.replicas = 2;
      if (recompute) s.recompute = s.ops;
    }
    const PartOutcomes parts = run_serial_parts(operators, pipeline, step);
    for (const nn::NamedTensor& b : model->buffers()) {
      EXPECT_TRUE(at::equal(b.tensor, before.at(b.name))) << b.name;
    }
    for (int r = 0; r < 2; ++r) {
      (void)run_plain(*model, share_of_step(step, r, 2));
      size_t found = 0;
      for (const nn::NamedTensor& b : model->buffers()) {
        for (const int part : {r, 2 + r}) {
          const auto own = parts.at(part).buffers.find(b.name);
          if (own == parts.at(part).buffers.end()) continue;
          ++found;
          EXPECT_TRUE(at::equal(own->second, b.tensor)) << b.name << " of replica " << r;
        }
        b.tensor.copy_(before.at(b.name));
      }
      EXPECT_EQ(found, before.size());
    }
  }
}

// Two convolutions, and the mean square of each sample.
nn::OperatorGraph convolutions() {
  nn::OperatorGraph out;
  nn::Source read{nn::kModelInput, 0};
  for (const int channels : {3, 8}) {
    const at::Tensor w = at::randn({8, channels, 3, 3}).requires_grad_();
    nn::Operator conv;
    conv.name = fmt::format("conv{}", channels);
    conv.inputs = {read};
    conv.parameters.push_back({.name = conv.name + ".weight", .tensor = w});
    conv.run = [w](std::span<const at::Tensor> in) {
      return Tensors{at::conv2d(in[0], w, {}, 1, 1).tanh()};
    };
    read = {out.add(conv), 0};
  }
  nn::Operator loss;
  loss.name = "loss";
  loss.inputs = {read};
  loss.run = [](std::span<const at::Tensor> in) {
    return Tensors{in[0].square().mean(at::IntArrayRef({1, 2, 3}))};
  };
  out.set_results({{out.add(loss), 0}});
  return out;
}

// Ranges of images whose channels lie last are put together as the images lie.
TEST(StageParts, ImagesThatLieChannelsLastAreNearThoseOfOneReplica) {
  at::manual_seed(5);
  const nn::OperatorGraph operators = convolutions();
  PipelineHost::Step step;
  for (int m = 0; m < 2; ++m) {
    step.inputs.push_back({at::randn({8, 3, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast)});
  }
  PipelineHost::Placement all;
  all.hosts = {0, 0};
  all.forms = tensor_forms(operators, step.inputs[0]);
  const TensorForm& form = all.forms.at({0, 0});
  EXPECT_EQ(form.strides[1], 1);  // channels lie last between the stages, too
  for (const int cut : {1, 2}) {
    PipelineHost host(operators, two_stages(operators, cut, 2), all);
    Outcome alone{host.run(step), {}};
    alone.gradients = host.gradients();
    for (const auto& [first, second] : {std::pair{2, 1}, {1, 4}, {4, 2}}) {
      Pipeline pipeline = two_stages(operators, cut, 2);
      pipeline.stages[0].replicas = first;
      pipeline.stages[1].replicas = second;
      const std::string what = fmt::format("cut at {}, {} and {}", cut, first, second);
      EXPECT_NO_THROW(check_samples_first(operators, pipeline, step.inputs[0])) << what;
      const PartOutcomes serial = run_serial_parts(operators, pipeline, step);
      expect_close(alone, whole_of(serial), what);
      std::vector<int> hosts;
      for (int part = 0; part < first + second; ++part) hosts.push_back(part % 2);
      expect_same(serial, run_parts(operators, pipeline, step, hosts, inproc_communicators(2)),
                  what);
    }
  }
}

// Rows by time and then by sample have the right number and are not those of the samples.
TEST(StageParts, RowsInAnotherOrderThanTheSamplesAreRefusedByName) {
  for (const bool by_time : {false, true}) {
    nn::OperatorGraph operators;
    nn::Operator fold, loss;
    fold.name = "fold";
    fold.inputs = {{nn::kModelInput, 0}};
    fold.run = [by_time](std::span<const at::Tensor> in) {
      const at::Tensor x = by_time ? in[0].permute({1, 0, 2}) : in[0];
      return Tensors{x.reshape({-1, 8})};
    };
    loss.name = "loss";
    loss.inputs = {{operators.add(fold), 0}};
    loss.run = [](std::span<const at::Tensor> in) { return Tensors{in[0].sum(1)}; };
    operators.set_results({{operators.add(loss), 0}});
    Pipeline pipeline = two_stages(operators, 1, 1);
    pipeline.stages[0].replicas = 2;
    std::string refusal;
    try {
      check_samples_first(operators, pipeline, {at::ones({4, 3, 8})});
    } catch (const Error& e) {
      refusal = e.what();
    }
    EXPECT_EQ(refusal.find("operator fold does not have the samples first") != std::string::npos,
              by_time)
        << refusal;
  }
}

// The sum of x w over the samples has no dimension of them.
TEST(StageParts, WhatCannotBeDividedBySamplesIsRefusedByName) {
  const nn::OperatorGraph operators = scaled_and_lost(
      8, [](const at::Tensor& x, const at::Tensor& w) { return (x * w).sum(0); },
      [](const at::Tensor& y) { return y.square(); });
  Pipeline pipeline = two_stages(operators, 1, 1);
  const auto refusal = [&](int64_t samples) -> std::string {
    PipelineHost::Placement all;
    all.hosts.assign(parts_of(pipeline).size(), 0);
    const Tensors inputs = {at::ones({samples, 8})};
    try {
      all.forms = tensor_forms(operators, inputs);
      all.shares = share_forms(operators, pipeline, inputs);
      const PipelineHost host(operators, pipeline, all);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  pipeline.stages[0].replicas = pipeline.stages[1].replicas = 2;
  EXPECT_EQ(refusal(4), "");
  EXPECT_NE(refusal(5).find("2 replicas of a stage do not divide the 5 samples"),
            std::string::npos);
  pipeline.stages[1].replicas = 1;
  EXPECT_NE(refusal(4).find("output 0 of operator scale cannot be divided by samples"),
            std::string::npos);
  pipeline.stages[1].replicas = 0;
  EXPECT_NE(refusal(4).find("stage 1 has 0 replicas"), std::string::npos);
  pipeline.stages[1].replicas = 1;
  pipeline.exact = true;
  EXPECT_NE(refusal(4).find("train.pipeline_exact"), std::string::npos);
}

}  // namespace
}  // namespace ductile::parallel
