#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/nn/init.h"
#include "ductile/nn/layers.h"
#include "ductile/nn/whitening.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

// The network of KellerJordan/cifar10-airbench (airbench94_muon), in its names: 2x2 patches made
// white by frozen filters, three pairs of 3x3 convolutions with batch norm without a learnt scale,
// and a head whose logits are divided by the number of its inputs.
class Airbench : public LayerModel {
 public:
  explicit Airbench(const ModelArgs& args) : LayerModel(args) {
    const int64_t width = args.options.width > 0 ? args.options.width : 64;
    // Of other widths libtorch would compute gradients that depend on the number of threads.
    if (width % 8 != 0) {
      fail(ErrorCode::invalid_argument,
           "model.width = {} and model.name = \"airbench\": the width is a multiple of 8", width);
    }
    activation_ = activation_of(args.options.activation);
    pixels_ = args.info.height * args.info.width;
    int64_t channels = 2 * args.info.channels * kPatch * kPatch;
    // What initialize() replaces.
    const std::vector<int64_t> shape = {channels, args.info.channels, kPatch, kPatch};
    whiten_ = add_parameter("whiten.weight", init_normal(shape, 0.5, seed(), "whiten.weight"),
                            /*frozen=*/true);
    whiten_bias_ = add_parameter(
        "whiten.bias",
        init_uniform({channels}, 1 / std::sqrt(channels / 2.0), seed(), "whiten.bias"));
    int64_t height = args.info.height - kPatch + 1, columns = args.info.width - kPatch + 1;
    for (const int64_t factor : {1, 4, 4}) {
      const std::string at = "layers." + std::to_string(groups_.size() + 1);
      Group group;
      group.conv1 = add_filters(at + ".conv1.weight", channels, factor * width);
      group.norm1 = add_norm(at + ".norm1", factor * width);
      channels = factor * width;
      group.conv2 = add_filters(at + ".conv2.weight", channels, channels);
      group.norm2 = add_norm(at + ".norm2", channels);
      groups_.push_back(group);
      height /= 2;
      columns /= 2;
    }
    const int64_t features = channels * (height / 3) * (columns / 3);
    // A standard deviation of 1.
    head_ = add_parameter("head.weight", init_uniform({args.num_classes(), features},
                                                      std::sqrt(3.0), seed(), "head.weight"));
  }

  // As many pixels as 5,000 images of CIFAR have, and 100 images of any size.
  int64_t num_initial_samples() const override {
    return std::clamp<int64_t>(5000 * 32 * 32 / pixels_, 100, 5000);
  }

  void initialize(const at::Tensor& samples) override {
    const at::NoGradGuard no_grad;
    whiten_.copy_(whitening_filters(samples, kPatch, 5e-4));
  }

  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor h =
        ops::bias_act(ops::conv2d(cast(x), whiten_, {}, 1, 0), whiten_bias_, activation_);
    for (const Group& group : groups_) {
      h = ops::max_pool2d(ops::conv2d(h, group.conv1, {}, 1, 1), 2, 2, 0);
      h = ops::bn_act(h, group.norm1, activation_, training());
      h = ops::conv_bn_act(h, group.conv2, 1, 1, group.norm2, {}, activation_, training());
    }
    h = ops::whole_image(ops::max_pool2d(h, 3, 3, 0)).flatten(1);
    return ops::linear(h, head_, {}).div(static_cast<double>(h.size(1)));
  }

  bool prefers_channels_last() override { return true; }

 private:
  static constexpr int64_t kPatch = 2;

  struct Group {
    at::Tensor conv1, conv2;
    ops::BatchNorm norm1, norm2;
  };

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

  ops::Activation activation_;
  int64_t pixels_;
  at::Tensor whiten_, whiten_bias_, head_;
  std::vector<Group> groups_;
};

}  // namespace

std::unique_ptr<Model> make_airbench(const ModelArgs& args) {
  require_images(args, 26);
  return std::make_unique<Airbench>(args);
}

}  // namespace ductile::nn
