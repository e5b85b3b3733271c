#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/nn/init.h"
#include "ductile/nn/operator_model.h"
#include "ductile/nn/whitening.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

// The network of KellerJordan/cifar10-airbench (airbench94_muon), in its names: 2x2 patches made
// white by frozen filters, three pairs of 3x3 convolutions with batch norm without a learnt scale,
// and a head whose logits are divided by the number of its inputs. With model.convolutions = 3 it
// is the deeper network of airbench96: each group has a third convolution, and what the first one
// came to is added to the third's.
class Airbench : public OperatorModel {
 public:
  explicit Airbench(const ModelArgs& args) : OperatorModel(args) {
    const int64_t width = args.options.width > 0 ? args.options.width : 64;
    const int64_t later = args.options.later_width > 0 ? args.options.later_width : 4 * width;
    check_width("model.width", width);
    check_width("model.later_width", later);
    const bool deep = args.options.convolutions == 3;
    const ops::Activation activation = activation_of(args.options.activation);
    pixels_ = args.info.height * args.info.width;
    int64_t channels = 2 * args.info.channels * kPatch * kPatch;
    // What initialize() replaces.
    const std::vector<int64_t> shape = {channels, args.info.channels, kPatch, kPatch};
    whiten_ = add_parameter("whiten.weight", init_normal(shape, 0.5, seed(), "whiten.weight"),
                            /*frozen=*/true);
    whiten_bias_ = add_parameter(
        "whiten.bias",
        init_uniform({channels}, 1 / std::sqrt(channels / 2.0), seed(), "whiten.bias"));
    Source h =
        add("whiten", "conv", {input()}, {whiten_, whiten_bias_}, [this, activation](Inputs x) {
          const at::Tensor y = ops::conv2d(cast(x[0]), whiten_, {}, 1, 0);
          return ops::bias_act(y, whiten_bias_, activation);
        });
    int64_t height = args.info.height - kPatch + 1, columns = args.info.width - kPatch + 1;
    for (int64_t number = 1; number <= 3; ++number) {
      const std::string at = "layers." + std::to_string(number);
      const int64_t inputs = channels;
      channels = number == 1 ? width : later;
      Group group;
      group.conv1 = add_filters(at + ".conv1.weight", inputs, channels);
      group.norm1 = add_norm(at + ".norm1", channels);
      group.conv2 = add_filters(at + ".conv2.weight", channels, channels);
      group.norm2 = add_norm(at + ".norm2", channels);
      if (deep) {
        group.conv3 = add_filters(at + ".conv3.weight", channels, channels);
        group.norm3 = add_norm(at + ".norm3", channels);
      }
      h = add_group(at, group, activation, h);
      height /= 2;
      columns /= 2;
    }
    const int64_t features = channels * (height / 3) * (columns / 3);
    // A standard deviation of 1.
    const at::Tensor head = add_parameter(
        "head.weight",
        init_uniform({args.num_classes(), features}, std::sqrt(3.0), seed(), "head.weight"));
    h = add_max_pool("pool", h, 3, 3, 0);
    finish(add("head", "linear", {h}, {head}, [head](Inputs in) {
      const at::Tensor x = ops::flatten(ops::whole_image(in[0]));
      return ops::linear(x, head, {}).div(static_cast<double>(x.size(1)));
    }));
  }

  // As many pixels as 5,000 images of CIFAR have, and 100 images of any size.
  int64_t num_initial_samples() const override {
    return std::clamp<int64_t>(5000 * 32 * 32 / pixels_, 100, 5000);
  }

  void initialize(const at::Tensor& samples) override {
    const at::NoGradGuard no_grad;
    whiten_.copy_(whitening_filters(samples, kPatch, 5e-4));
  }

  bool prefers_channels_last() override { return true; }

 private:
  static constexpr int64_t kPatch = 2;

  struct Group {
    at::Tensor conv1, conv2, conv3;  // conv3 and norm3: undefined where there are two
    ops::BatchNorm norm1, norm2, norm3;
  };

  // Of other widths libtorch would compute gradients that depend on the number of threads.
  static void check_width(std::string_view option, int64_t width) {
    if (width % 8 == 0) return;
    fail(ErrorCode::invalid_argument,
         "{} = {} and model.name = \"airbench\": the width is a multiple of 8", option, width);
  }

  Source add_group(const std::string& at, const Group& g, ops::Activation activation, Source x) {
    x = add(at + ".conv1", "conv", {x}, {g.conv1}, [w = g.conv1](Inputs in) {
      return ops::max_pool2d(ops::conv2d(in[0], w, {}, 1, 1), 2, 2, 0);
    });
    const ops::BatchNorm &n1 = g.norm1, &n2 = g.norm2;
    x = add(at + ".norm1", "norm", {x}, {n1.weight, n1.bias, n1.running_mean, n1.running_var},
            [this, n1, activation](Inputs in) {
              return ops::bn_act(in[0], n1, activation, training());
            });
    const Source y = add(at + ".conv2", "conv_bn", {x},
                         {g.conv2, n2.weight, n2.bias, n2.running_mean, n2.running_var},
                         [this, w = g.conv2, n2, activation](Inputs in) {
                           return ops::conv_bn_act(in[0], w, 1, 1, n2, {}, activation, training());
                         });
    if (!g.conv3.defined()) return y;
    const ops::BatchNorm& n3 = g.norm3;
    return add(at + ".conv3", "conv_bn", {y, x},
               {g.conv3, n3.weight, n3.bias, n3.running_mean, n3.running_var},
               [this, w = g.conv3, n3, activation](Inputs in) {
                 return ops::conv_bn_act(in[0], w, 1, 1, n3, in[1], activation, training());
               });
  }

  static ops::Activation activation_of(const std::string& name) {
    if (name == "silu") return ops::Activation::silu;
    return name == "relu" ? ops::Activation::relu : ops::Activation::gelu;
  }

  // As nn.Conv2d begins, but the first filters copy one input channel each.
  at::Tensor add_filters(const std::string& name, int64_t in, int64_t out) {
    at::Tensor w =
        init_uniform({out, in, 3, 3}, 1 / std::sqrt(9.0 * static_cast<double>(in)), seed(), name);
    float* const values = w.data_ptr<float>();
    for (int64_t o = 0; o < std::min(in, out); ++o) {
      std::fill_n(values + o * in * 9, in * 9, 0.0F);
      values[(o * in + o) * 9 + 4] = 1;
    }
    return add_parameter(name, w);
  }

  ops::BatchNorm add_norm(const std::string& name, int64_t channels) {
    ops::BatchNorm bn = add_batch_norm(name, channels, /*frozen_weight=*/true);
    bn.momentum = 0.4;
    bn.eps = 1e-12;
    return bn;
  }

  int64_t pixels_;
  at::Tensor whiten_, whiten_bias_;
};

}  // namespace

std::unique_ptr<Model> make_airbench(const ModelArgs& args) {
  require_images(args, 26);
  return std::make_unique<Airbench>(args);
}

}  // namespace ductile::nn
