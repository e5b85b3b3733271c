// The bits of the built-in models do not depend on the number of compute threads.
#include "ductile/nn/threads.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "ductile/nn/init.h"
#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"
#include "ductile/nn/testing/several_inputs.h"

namespace ductile::nn {
namespace {

// A model at a size at which libtorch's operators use several threads.
struct Case {
  const char* model;
  int64_t batch;
  int64_t side;       // of images, or tokens
  int64_t width = 0;  // 12 is none of ours: ATen computes these convolutions
  int64_t convolutions = 2;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << " batch " << c.batch << " side " << c.side << " width " << c.width
             << " convolutions " << c.convolutions;
}

ModelArgs args_of(const Case& c) {
  ModelArgs args;
  args.options.name = c.model;
  args.options.width = c.width;
  args.options.convolutions = c.convolutions;
  args.options.dropout = 0.1;
  const std::string name = c.model;
  if (name == "gpt") {
    args.options.layers = 2;
    args.options.heads = 3;
    args.options.dim = 120;
    args.info = {0, 0, 0, 203, c.side};
    return args;
  }
  if (name == "mlp") args.options.hidden = {100, 33};
  if (name == "mmt" || name == "dlrm" || name == "candle-uno") {
    args.options.layers = 1;
    args.options.heads = 3;
    args.options.dim = 120;
    args.options.hidden = {100, 33};
    const std::string side = std::to_string(c.side);
    args.info = {0,
                 0,
                 0,
                 10,
                 0,
                 spec::sample_inputs({name == "mmt"    ? "2*tokens:" + side + ":203"
                                      : name == "dlrm" ? "2*indices:" + side + ":203"
                                                       : "2*vector:" + side})};
    if (name == "dlrm") args.info.inputs.push_back({.length = c.side});
    return args;
  }
  args.info = {name == "mlp" || name == "cnn" ? 1 : 3, c.side, c.side, 10, 0};
  return args;
}

at::Tensor mean_of(const LossOutput& loss) {  // as train::Replica does
  const OneThread alone;
  return loss.losses.mean();
}

struct Result {
  std::vector<std::string> names;
  std::vector<at::Tensor> values;

  void add(const std::string& name, const at::Tensor& value) {
    names.push_back(name);
    values.push_back(value.detach().clone().contiguous());
  }
};

// A step of training with `threads` threads.
Result train(const Case& c, const char* precision, int threads) {
  at::set_num_threads(threads);
  ModelArgs args = args_of(c);
  args.precision = precision;
  const auto model = make_model(args);
  Tensors x;
  at::Tensor labels;
  const auto up_to = [](const std::vector<int64_t>& shape, const char* name, int64_t n) {
    return init_uniform(shape, 0.5, 3, name)
        .add(0.5)
        .mul(static_cast<double>(n))
        .floor()
        .to(at::kLong)
        .clamp_max(n - 1);
  };
  if (args.info.sequence_length > 0) {
    x = {up_to({c.batch, c.side}, "x", args.info.num_classes)};
    labels = up_to({c.batch, c.side}, "labels", args.info.num_classes);
  } else if (!args.info.inputs.empty()) {
    x = testing::tensors_for(args.info.inputs, c.batch);
    labels = up_to({c.batch}, "labels", 10);
  } else {
    x = {init_normal({c.batch, args.info.channels, c.side, c.side}, 1, 3, "x")};
    if (model->prefers_channels_last()) x[0] = x[0].contiguous(at::MemoryFormat::ChannelsLast);
    const bool pixels = args.options.name == "unet";
    labels =
        pixels ? up_to({c.batch, c.side, c.side}, "labels", 10) : up_to({c.batch}, "labels", 10);
  }
  Result result;
  seed_step(1);
  const LossOutput loss = model->loss(forward(*model, x), labels, 0.1);
  const at::Tensor mean = mean_of(loss);
  mean.backward();
  result.add("losses", loss.losses);
  result.add("loss", mean);
  for (const NamedTensor& p : model->parameters()) {
    if (!p.frozen) result.add(p.name, p.tensor.grad());
  }
  for (const NamedTensor& b : model->buffers()) result.add(b.name, b.tensor);
  model->train(false);
  for (const NamedTensor& p : model->parameters()) p.tensor.mutable_grad() = at::Tensor();
  const LossOutput evaluated = model->loss(forward(*model, x), labels, 0);
  result.add("losses in evaluation", evaluated.losses);
  mean_of(evaluated).backward();
  for (const NamedTensor& p : model->parameters()) {
    if (!p.frozen) result.add(p.name + " in evaluation", p.tensor.grad());
  }
  return result;
}

class ThreadInvariant : public ::testing::TestWithParam<Case> {};

TEST_P(ThreadInvariant, OneTwoAndThreeThreadsGiveTheSameBits) {
  const int before = at::get_num_threads();
  // Each model in each precision only in the long form; every second one with the one, the others
  // with the other short type.
  std::vector<const char*> precisions = {"fp32", GetParam().batch % 4 == 1 ? "bf16" : "fp16"};
  if (std::getenv("DUCTILE_ALL_SIZES") != nullptr) precisions = {"fp32", "bf16", "fp16"};
  for (const char* precision : precisions) {
    const Result want = train(GetParam(), precision, 1);
    for (const int threads : {2, 3}) {
      const Result got = train(GetParam(), precision, threads);
      ASSERT_EQ(got.names, want.names);
      for (size_t i = 0; i < want.names.size(); ++i) {
        const at::Tensor &a = want.values[i], &b = got.values[i];
        ASSERT_EQ(a.nbytes(), b.nbytes());
        EXPECT_EQ(std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()), 0)
            << want.names[i] << " differs with " << threads << " threads in " << precision;
      }
    }
  }
  at::set_num_threads(before);
}

// Odd batches, batches above libtorch's grain, widths and heads that our kernels do not take, a
// single channel and images of a single pixel.
INSTANTIATE_TEST_SUITE_P(
    Zoo, ThreadInvariant,
    ::testing::Values(
        Case{"mlp", 7, 28}, Case{"mlp", 513, 28}, Case{"mlp", 40001, 4}, Case{"cnn", 1, 28},
        Case{"cnn", 65, 28}, Case{"cnn", 33, 28, 12}, Case{"cnn", 65, 28, 1},
        Case{"airbench", 33, 32}, Case{"airbench", 3, 30, 24}, Case{"airbench", 17, 32, 16, 3},
        Case{"resnet8", 33, 32}, Case{"resnet8", 33, 32, 12}, Case{"resnet8", 64, 4, 11},
        Case{"resnet20", 9, 32}, Case{"resnet32", 5, 32}, Case{"resnet56", 3, 32},
        Case{"resnet18", 5, 64}, Case{"resnet18-cifar", 3, 32}, Case{"resnet50", 3, 64},
        Case{"unet", 1, 64}, Case{"unet", 5, 64}, Case{"unet", 3, 64, 12}, Case{"gpt", 3, 65},
        Case{"gpt", 17, 65}, Case{"mmt", 3, 65}, Case{"mmt", 17, 65}, Case{"dlrm", 513, 5},
        Case{"dlrm", 33, 300}, Case{"candle-uno", 513, 300}, Case{"candle-uno", 7, 28}));

TEST(ThreadInvariant, EveryModelThatTheTableCallsSoIsTested) {
  const ::testing::TestSuite* suite = nullptr;
  for (int i = 0; i < ::testing::UnitTest::GetInstance()->total_test_suite_count(); ++i) {
    const ::testing::TestSuite* s = ::testing::UnitTest::GetInstance()->GetTestSuite(i);
    if (std::string(s->name()) == "Zoo/ThreadInvariant") suite = s;
  }
  ASSERT_NE(suite, nullptr);
  std::string tested;
  for (int i = 0; i < suite->total_test_count(); ++i)
    tested += std::string(suite->GetTestInfo(i)->value_param()) + "\n";
  for (const ModelEntry& entry : model_table()) {
    spec::ModelOptions options;
    options.name = entry.name;
    if (!thread_invariant(options)) continue;
    EXPECT_NE(("\n" + tested).find("\n" + std::string(entry.name) + " batch"), std::string::npos)
        << entry.name;
  }
}

TEST(ThreadInvariant, WhatIsNotKnownIsNotCalledSo) {
  spec::ModelOptions options;
  options.name = "nobody's";
  EXPECT_FALSE(thread_invariant(options));
}

}  // namespace
}  // namespace ductile::nn
