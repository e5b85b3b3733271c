#include <string>
#include <vector>

#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>

#include "ductile/base/error.h"
#include "ductile/nn/operator_model.h"
#include "ductile/nn/spatial.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

constexpr int64_t kLevels = 4;
constexpr int64_t kShrink = 1 << (kLevels - 1);

class UNet : public OperatorModel {
 public:
  explicit UNet(const ModelArgs& args) : OperatorModel(args) {
    const int64_t width = args.options.width > 0 ? args.options.width : 16;
    // Convolution `index` of a level, named LEVEL.convN.
    const auto conv = [&](const std::string& level, const char* index, int64_t in, int64_t out,
                          int64_t kernel) {
      const std::string name = level + ".conv" + index;
      const ConvBn layer =
          add_conv_bn(name, level + ".bn" + index, in, out, kernel, 1, ConvInit::he_fan_out);
      return [this, name, layer](Source x) { return add_conv_bn_act(name, layer, x, true); };
    };
    std::vector<Source> skips;
    Source h = input();
    int64_t in = args.info.channels;
    for (int64_t level = 0; level < kLevels; ++level) {
      const std::string at = "down" + std::to_string(level + 1);
      const int64_t out = width << level;
      const auto conv1 = conv(at, "1", in, out, 3), conv2 = conv(at, "2", out, out, 3);
      if (level > 0) h = add_max_pool(at + ".pool", h, 2, 2, 0);
      h = conv2(conv1(h));
      skips.push_back(h);
      in = out;
    }
    skips.pop_back();
    for (int64_t level = kLevels - 2; level >= 0; --level) {
      const std::string at = "up" + std::to_string(level + 1);
      const int64_t out = width << level;
      // Channels are halved before the pixels are doubled: a quarter of the work, and of the
      // memory.
      const auto reduce = conv(at, "0", 2 * out, out, 1), conv1 = conv(at, "1", 2 * out, out, 3),
                 conv2 = conv(at, "2", out, out, 3);
      h = add(at + ".join", "concat", {skips.back(), reduce(h)}, {}, [](Inputs x) {
        return at::cat({x[0], ops::upsample_twice(x[1])}, 1);
      });
      skips.pop_back();
      h = conv2(conv1(h));
    }
    const Conv head = add_conv("head", width, args.num_classes(), 1);
    finish(add("head", "conv", {h}, {head.weight, head.bias},
               [head](Inputs x) { return ops::conv2d(x[0], head.weight, head.bias, 1, 0); }));
  }

  LossOutput loss(const at::Tensor& logits, const at::Tensor& labels,
                  double label_smoothing) override {
    if (labels.dim() != 3) {
      fail(ErrorCode::invalid_argument,
           "model.name = \"unet\" learns a class for each pixel, labels [B, H, W]; these labels "
           "have {} axes",
           labels.dim());
    }
    LossOutput out;
    out.losses = ops::pixel_cross_entropy(logits, labels, label_smoothing);
    double counts[2] = {at::argmax(logits.detach(), 1).eq(labels).sum().item<double>(),
                        static_cast<double>(labels.numel())};
    if (SpatialSplit* split = current_spatial_split()) split->sum(counts);
    out.correct = static_cast<int64_t>(counts[0]);
    out.predictions = static_cast<int64_t>(counts[1]);
    return out;
  }

  bool prefers_channels_last() override { return true; }
};

}  // namespace

std::unique_ptr<Model> make_unet(const ModelArgs& args) {
  require_images(args, kShrink);
  if (args.info.height % kShrink != 0 || args.info.width % kShrink != 0) {
    fail(ErrorCode::invalid_argument,
         "model.name = \"unet\" halves its images {} times, so their sides must be multiples of "
         "{}; the data has {}x{}",
         kLevels - 1, kShrink, args.info.width, args.info.height);
  }
  return std::make_unique<UNet>(args);
}

}  // namespace ductile::nn
