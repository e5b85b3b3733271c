#include "ductile/nn/flops.h"

#include <cmath>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/version.h>

#include "ductile/nn/generator.h"
#include "ductile/nn/operators.h"
#include "ductile/nn/ops.h"
#include "ductile/nn/threads.h"
#include "ductile/nn/torch_module.h"

namespace ductile::nn {
namespace {

// A model that is a function, with a parameter and a buffer.
class FunctionModel : public Model {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  explicit FunctionModel(Forward forward) : forward_(std::move(forward)) {
    weight = register_parameter("weight", at::ones({3}));
    buffer = register_buffer("buffer", at::ones({3}));
  }
  at::Tensor forward(const at::Tensor& x) override {
    was_training = training();
    return forward_(x);
  }
  bool in_training() const { return training(); }

  at::Tensor weight, buffer;
  bool was_training = true;

 private:
  Forward forward_;
};

std::optional<double> flops_of(FunctionModel::Forward forward) {
  FunctionModel model(std::move(forward));
  return forward_flops(model, at::ones({1}));
}

// A model at the input of its papers, or of spec/models.h.
ModelArgs args_of(const std::string& name, const std::string& precision = "fp32") {
  ModelArgs args;
  args.options.name = name;
  args.precision = precision;
  if (name == "mlp" || name == "cnn") {
    args.info = {1, 28, 28, 10, 0};
  } else if (name == "resnet18" || name == "resnet50") {
    args.info = {3, 224, 224, 1000, 0};
  } else if (name == "unet") {
    args.info = {3, 64, 64, 4, 0};
  } else if (name == "gpt") {
    args.info = {0, 0, 0, 256, 128};
  } else if (name == "mmt") {
    args.info = {0, 0, 0, 10, 0, spec::sample_inputs({"4*tokens:32:64"})};
  } else if (name == "dlrm") {
    args.info = {0, 0, 0, 2, 0, spec::sample_inputs({"7*vector:64", "7*indices:4:1000"})};
  } else if (name == "candle-uno") {
    args.info = {0, 0, 0, 10, 0, spec::sample_inputs({"7*vector:64"})};
  } else {
    args.info = {3, 32, 32, 10, 0};
  }
  return args;
}

Tensors sample_of(const ModelArgs& args) {
  const ModelInfo& i = args.info;
  Tensors out;
  for (const spec::SampleInput& input : i.inputs) {
    out.push_back(at::zeros({1, input.length}, input.is_numbers() ? at::kLong : at::kFloat));
  }
  if (!out.empty()) return out;
  if (i.sequence_length > 0) return {at::zeros({1, i.sequence_length}, at::kLong)};
  return {at::zeros({1, i.channels, i.height, i.width})};
}

// Multiply-adds of a square convolution that gives `side` x `side` pixels.
double conv(double side, double in, double out, double kernel) {
  return side * side * in * out * kernel * kernel;
}

// He et al. 2015, section 4.2: 6n + 2 layers, here with the padded shortcuts of the paper.
double resnet_cifar(double n) {
  double sum = conv(32, 3, 16, 3) + 2 * n * conv(32, 16, 16, 3) + 64 * 10;
  sum += conv(16, 16, 32, 3) + (2 * n - 1) * conv(16, 32, 32, 3);
  return sum + conv(8, 32, 64, 3) + (2 * n - 1) * conv(8, 64, 64, 3);
}

double unet() {  // width 16, four levels; of each way up, channels are halved before the pixels
  double sum = conv(64, 16, 4, 1), in = 3;
  for (const double level : {0, 1, 2, 3}) {
    const double width = 16 * std::pow(2, level), side = 64 / std::pow(2, level);
    sum += conv(side, in, width, 3) + conv(side, width, width, 3);
    in = width;
    if (level == 3) break;
    sum += conv(side / 2, 2 * width, width, 1) + conv(side, 2 * width, width, 3) +
           conv(side, width, width, 3);
  }
  return sum;
}

double airbench() {  // width 64; the first of two convolutions sees the size before its pooling
  double sum = conv(31, 3, 24, 2) + 256 * 10;
  sum += conv(31, 24, 64, 3) + conv(15, 64, 64, 3);
  sum += conv(15, 64, 256, 3) + conv(7, 256, 256, 3);
  return sum + conv(7, 256, 256, 3) + conv(3, 256, 256, 3);
}

// Groups of three convolutions at widths of 128 and 384.
double deeper_airbench() {
  double sum = conv(31, 3, 24, 2) + 384 * 10;
  sum += conv(31, 24, 128, 3) + 2 * conv(15, 128, 128, 3);
  sum += conv(15, 128, 384, 3) + 2 * conv(7, 384, 384, 3);
  return sum + conv(7, 384, 384, 3) + 2 * conv(3, 384, 384, 3);
}

double gpt(const spec::ModelOptions& options) {
  const auto tokens = 128.0, vocabulary = 256.0;
  const auto dim = static_cast<double>(options.dim), layers = static_cast<double>(options.layers);
  return layers * (12 * tokens * dim * dim + 2 * tokens * tokens * dim) + tokens * dim * vocabulary;
}

// Four branches of four layers, and a head over what they end in.
double mmt(const spec::ModelOptions& options) {
  const auto tokens = 32.0, dim = static_cast<double>(options.dim);
  const double layer = 12 * tokens * dim * dim + 2 * tokens * tokens * dim;
  return 4 * (static_cast<double>(options.layers) * layer + dim * 10);
}

struct Known {
  std::string name;
  double multiply_adds;
};

std::vector<Known> zoo() {
  return {{"mlp", 784 * 128 + 128 * 10},
          {"cnn", conv(28, 1, 16, 3) + conv(14, 16, 32, 3) + 1568 * 64 + 64 * 10},
          {"airbench", airbench()},
          {"resnet8", resnet_cifar(1)},
          {"resnet20", resnet_cifar(3)},
          {"resnet32", resnet_cifar(5)},
          {"resnet56", resnet_cifar(9)},
          // torchvision's pages of its models: 1.81 and 4.09 G.
          {"resnet18", 1'814'073'344},
          {"resnet18-cifar", 555'422'720},
          {"resnet50", 4'089'184'256},
          {"unet", unet()},
          {"gpt", gpt({})},
          {"mmt", mmt({})},
          {"dlrm", 7 * 64 * 128 + (7 * 128 + 7 * 4 * 128) * 128 + 128 * 2},
          {"candle-uno", 7 * 64 * 128 + 7 * 128 * 128 + 128 * 10}};
}

TEST(Flops, OfTheZooAreThoseOfThePapers) {
  // He et al. 2015, table 6 of section 4.2 and its text: ResNet-20 to 56.
  EXPECT_NEAR(resnet_cifar(3), 0.0405e9, 0.0002e9);
  EXPECT_NEAR(resnet_cifar(9), 0.125e9, 0.001e9);
  size_t known = 0;
  for (const ModelEntry& entry : model_table()) {
    for (const Known& k : zoo()) {
      if (k.name != entry.name) continue;
      ++known;
      const ModelArgs args = args_of(k.name);
      const auto model = make_model(args);
      EXPECT_EQ(forward_flops(*model, sample_of(args)), 2 * k.multiply_adds) << k.name;
    }
  }
  EXPECT_EQ(known, model_table().size()) << "a model without its number here";
}

TEST(Flops, OfADeeperAirbenchAreThoseOfItsConvolutions) {
  ModelArgs args = args_of("airbench");
  args.options.width = 128;
  args.options.later_width = 384;
  args.options.convolutions = 3;
  EXPECT_EQ(forward_flops(*make_model(args), sample_of(args)), 2 * deeper_airbench());
}

// Other kernels, the same arithmetic.
TEST(Flops, DependNeitherOnThreadsNorOnThePrecision) {
  const int before = at::get_num_threads();
  for (const char* name :
       {"mlp", "cnn", "resnet20", "resnet18-cifar", "airbench", "unet", "gpt", "mmt", "dlrm"}) {
    std::vector<std::optional<double>> counts;
    for (const char* precision : {"fp32", "bf16", "fp16", "fp64"}) {
      for (const int threads : {1, 2}) {
        at::set_num_threads(threads);
        const ModelArgs args = args_of(name, precision);
        counts.push_back(forward_flops(*make_model(args), sample_of(args)));
        EXPECT_EQ(counts.back(), counts.front()) << name << " " << precision << " " << threads;
      }
    }
  }
  at::set_num_threads(before);
}

// Winograd, direct, a product of matrices, oneDNN.
TEST(Flops, OfOurConvolutionsWhoeverComputesThem) {
  const int before = at::get_num_threads();
  struct Case {
    int64_t in, out, kernel, stride;
  };
  for (const Case& c :
       {Case{16, 16, 3, 1}, Case{16, 32, 3, 2}, Case{64, 64, 1, 1}, Case{512, 512, 1, 1},
        Case{512, 128, 1, 2}, Case{12, 12, 3, 1}, Case{5, 7, 1, 1}, Case{512, 512, 3, 1}}) {
    const at::Tensor x = at::ones({2, c.in, 10, 10});
    const at::Tensor w = at::ones({c.out, c.in, c.kernel, c.kernel}), bias = at::ones({c.out});
    const double side = 10.0 / static_cast<double>(c.stride);
    const double want = 2 * 2 * side * side * static_cast<double>(c.in * c.out) *
                        static_cast<double>(c.kernel * c.kernel);
    const ops::BatchNorm bn{bias, bias, at::zeros({c.out}), at::ones({c.out})};
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      EXPECT_EQ(flops_of([&](const at::Tensor&) {
                  return ops::conv2d(x, w, bias, c.stride, c.kernel / 2);
                }),
                want)
          << c.in << " " << c.out << " " << c.kernel;
      EXPECT_EQ(flops_of([&](const at::Tensor&) {
                  return ops::conv_bn_act(x, w, c.stride, c.kernel / 2, bn, {},
                                          ops::Activation::relu, false);
                }),
                want)
          << c.in << " " << c.out << " " << c.kernel;
    }
  }
  at::set_num_threads(before);
}

struct Net : torch::nn::Module {
  explicit Net(const ModelArgs& args)
      : conv(torch::nn::Conv2dOptions(4, 6, 3).stride(2).padding(1).groups(2)),
        fc(6 * 5 * 5, args.num_classes()) {
    register_module("conv", conv);
    register_module("fc", fc);
  }
  at::Tensor forward(const at::Tensor& x) { return fc(conv(x).relu().flatten(1)); }

  torch::nn::Conv2d conv;
  torch::nn::Linear fc;
};

TEST(Flops, OfATorchModuleCountAlike) {
  ModelArgs args;
  args.info = {4, 10, 10, 8, 0};
  TorchModuleModel<Net> model(args);
  EXPECT_EQ(forward_flops(model, at::ones({1, 4, 10, 10})), 2.0 * (25 * 6 * 2 * 9 + 150 * 8));
}

// An operator of libtorch, of ones.
struct Case {
  const char* name;
  double multiply_adds;
  FunctionModel::Forward forward;
};

at::Tensor ones(at::IntArrayRef sizes) { return at::ones(sizes); }

void expect_counted(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(flops_of(c.forward), 2 * c.multiply_adds) << c.name;
}

TEST(Flops, OfMatrixProductsOfLibtorch) {
  expect_counted({
    {"mm", 2 * 3 * 4,
     [](auto&) {
       return at::mm(ones({2, 3}), ones({3, 4}));
     }},
        {"mv", 2 * 3,
         [](auto&) {
           return at::mv(ones({2, 3}), ones({3}));
         }},
        {"dot", 3, [](auto&) { return at::dot(ones({3}), ones({3})); }},
        {"bmm", 5 * 2 * 3 * 4,
         [](auto&) {
           return at::bmm(ones({5, 2, 3}), ones({5, 3, 4}));
         }},
        {"matmul", 5 * 2 * 3 * 4,
         [](auto&) {
           return at::matmul(ones({5, 2, 3}), ones({3, 4}));
         }},
        {"addmm", 2 * 3 * 4,
         [](auto&) {
           return at::addmm(ones({4}), ones({2, 3}), ones({3, 4}));
         }},
        {"addmm_", 2 * 3 * 4,
         [](auto&) {
           return ones({2, 4}).addmm_(ones({2, 3}), ones({3, 4}));
         }},
        {"addmv", 2 * 3,
         [](auto&) {
           return at::addmv(ones({2}), ones({2, 3}), ones({3}));
         }},
        {"addbmm", 5 * 2 * 3 * 4,
         [](auto&) {
           return at::addbmm(ones({2, 4}), ones({5, 2, 3}), ones({5, 3, 4}));
         }},
        {"baddbmm", 5 * 2 * 3 * 4,
         [](auto&) {
           return at::baddbmm(ones({5, 2, 4}), ones({5, 2, 3}), ones({5, 3, 4}));
         }},
        {"linear", 5 * 2 * 3 * 4,
         [](auto&) {
           return at::linear(ones({5, 2, 3}), ones({4, 3}), ones({4}));
         }},
        {"einsum", 5 * 2 * 3 * 4,
         [](auto&) {
           return at::einsum("bij,bjk->bik", {ones({5, 2, 3}), ones({5, 3, 4})});
         }},
        {"lstm", 7 * (4 * 6 * 5 + 4 * 6 * 6),
         [](auto&) {
           return std::get<0>(at::lstm(ones({7, 1, 5}), {ones({1, 1, 6}), ones({1, 1, 6})},
                                       {ones({24, 5}), ones({24, 6}), ones({24}), ones({24})}, true,
                                       1, 0, false, false, false));
         }},
        {"elementwise", 0, [](auto&) { return ones({5}).mul(2).add(1).softmax(0); }},
#if TORCH_VERSION_MAJOR < 2
        {"attention", 2 * 7 * 9 * (4 + 4), [](auto&) {
           return std::get<0>(at::_scaled_dot_product_attention(ones({2, 7, 4}), ones({2, 9, 4}),
                                                                ones({2, 9, 4})));
         }},
#else
        {"attention", 2 * 7 * 9 * (4 + 4), [](auto&) {
           return at::scaled_dot_product_attention(ones({1, 2, 7, 4}), ones({1, 2, 9, 4}),
                                                   ones({1, 2, 9, 4}));
         }},
#endif
  });
}

TEST(Flops, OfConvolutionsOfLibtorch) {
  expect_counted(
      {{"conv1d", 8 * 4 * 3 * 3,
        [](auto&) {
          return at::conv1d(ones({1, 3, 10}), ones({4, 3, 3}));
        }},
       {"conv3d", 8 * 8 * 8 * 2 * 27,
        [](auto&) {
          return at::conv3d(ones({1, 1, 10, 10, 10}), ones({2, 1, 3, 3, 3}));
        }},
       {"dilated", 6 * 6 * 4 * 3 * 9,
        [](auto&) {
          return at::conv2d(ones({1, 3, 10, 10}), ones({4, 3, 3, 3}), {}, 1, int64_t{0}, 2);
        }},
       {"depthwise", 8 * 8 * 6 * 9,
        [](auto&) {
          return at::conv2d(ones({1, 6, 10, 10}), ones({6, 1, 3, 3}), {}, 1, int64_t{0}, 1, 6);
        }},
       {"transposed", 5 * 5 * 3 * 4 * 9, [](auto&) {
          return at::conv_transpose2d(ones({1, 3, 5, 5}), ones({3, 4, 3, 3}), {}, 2);
        }}});
}

TEST(Flops, AnOperatorOfOnesOwnAnnouncesThem) {
  EXPECT_EQ(flops_of([](const at::Tensor& x) {
              {
                const KnownFlops known(1000);
                at::mm(at::ones({2, 3}), at::ones({3, 4}));
                const KnownFlops inner(7);
              }
              return at::mm(at::ones({2, 3}), at::ones({3, 4})).add(x);
            }),
            1000 + 48);
}

TEST(Flops, AreNotKnownWhereTheForwardPassThrows) {
  const auto throws = [](const at::Tensor& x) -> at::Tensor {
    at::mm(at::ones({2, 3}), at::ones({3, 4}));
    if (x.size(0) == 1) throw std::runtime_error("a batch of one");
    return x;
  };
  FunctionModel model(throws);
  EXPECT_FALSE(forward_flops(model, at::ones({1, 2})).has_value());
  EXPECT_TRUE(model.in_training());
  EXPECT_FALSE(at::hasCallbacks());
  EXPECT_FALSE(flops_of([](const at::Tensor& x) { return x.view({7, 7}); }).has_value());
  EXPECT_FALSE(flops_of([](const at::Tensor&) -> at::Tensor { throw 5; }).has_value());
}

// Even of a model that writes whatever it can reach, in evaluation mode.
TEST(Flops, CountingLeavesNoTrace) {
  FunctionModel* self = nullptr;
  FunctionModel model([&](const at::Tensor& x) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    self->weight.detach().add_(at::rand({3}));
    at::ones({3}).bernoulli_(0.5, own_generator());
    self->buffer.mul_(2).sub_(at::randn({3}));
    return x;
  });
  self = &model;
  const auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor weight = model.weight.detach().clone(), buffer = model.buffer.clone(),
                   state = generator.get_state(), own_state = own_generator().get_state();
  EXPECT_EQ(forward_flops(model, at::ones({1})), 0);
  EXPECT_FALSE(model.was_training);
  EXPECT_TRUE(model.in_training());
  EXPECT_TRUE(at::GradMode::is_enabled());
  EXPECT_FALSE(at::hasCallbacks());
  EXPECT_TRUE(at::equal(model.weight, weight));
  EXPECT_TRUE(at::equal(model.buffer, buffer));
  EXPECT_TRUE(at::equal(generator.get_state(), state));
  EXPECT_TRUE(at::equal(own_generator().get_state(), own_state));
}

// What another thread draws meanwhile would be lost when the generator is put back.
TEST(Flops, NobodyDrawsWhileAModelIsCounted) {
  bool drawn = true;
  const auto flops = flops_of([&](const at::Tensor& x) {
    std::thread([&] {
      const std::unique_lock lock(generator_mutex(), std::try_to_lock);
      drawn = lock.owns_lock();
    }).join();
    return x;
  });
  EXPECT_TRUE(flops.has_value());
  EXPECT_FALSE(drawn);
}

TEST(Flops, ATrainingStepAfterCountingHasTheSameBits) {
  const OneThread alone;
  for (const char* name : {"cnn", "resnet8", "gpt"}) {
    ModelArgs args = args_of(name);
    args.options.dropout = 0.1;
    const auto plain = make_model(args), counted = make_model(args);
    const int64_t batch = 3;
    const bool tokens = args.info.sequence_length > 0;
    const at::Tensor x =
        tokens
            ? at::arange(batch * args.info.sequence_length).remainder(256).view({batch, -1})
            : at::linspace(-1, 1, batch * args.info.channels * args.info.height * args.info.width)
                  .view({batch, args.info.channels, args.info.height, args.info.width});
    const at::Tensor labels = tokens ? x : at::arange(batch);
    EXPECT_GT(forward_flops(*counted, sample_of(args)), 0);
    for (Model* model : {plain.get(), counted.get()}) {
      seed_step(3);
      model->loss(model->forward(x), labels, 0.1).losses.mean().backward();
    }
    const auto before = plain->parameters(), after = counted->parameters();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(before[i].tensor, after[i].tensor)) << before[i].name;
      EXPECT_TRUE(at::equal(before[i].tensor.grad(), after[i].tensor.grad())) << before[i].name;
    }
    const auto buffers = plain->buffers(), moved = counted->buffers();
    for (size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_TRUE(at::equal(buffers[i].tensor, moved[i].tensor)) << buffers[i].name;
    }
  }
}

}  // namespace
}  // namespace ductile::nn
