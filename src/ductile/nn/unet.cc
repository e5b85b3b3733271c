#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>

#include "ductile/base/error.h"
#include "ductile/nn/layers.h"
#include "ductile/nn/spatial.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

constexpr int64_t kLevels = 4;
constexpr int64_t kShrink = 1 << (kLevels - 1);

class UNet : public LayerModel {
 public:
  explicit UNet(const ModelArgs& args) : LayerModel(args) {
    const int64_t width = args.options.width > 0 ? args.options.width : 16;
    const auto add = [&](const std::string& at, const char* index, int64_t in, int64_t out,
                         int64_t kernel) {
      return add_conv_bn(at + ".conv" + index, at + ".bn" + index, in, out, kernel, 1,
                         ConvInit::he_fan_out);
    };
    int64_t in = args.info.channels;
    for (int64_t level = 0; level < kLevels; ++level) {
      const std::string at = "down" + std::to_string(level + 1);
      const int64_t out = width << level;
      down_.push_back({{}, add(at, "1", in, out, 3), add(at, "2", out, out, 3)});
      in = out;
    }
    for (int64_t level = kLevels - 2; level >= 0; --level) {
      const std::string at = "up" + std::to_string(level + 1);
      const int64_t out = width << level;
      up_.push_back({add(at, "0", 2 * out, out, 1), add(at, "1", 2 * out, out, 3),
                     add(at, "2", out, out, 3)});
    }
    head_ = add_conv("head", width, args.num_classes(), 1);
  }

  at::Tensor forward(const at::Tensor& x) override {
    std::vector<at::Tensor> skips;
    at::Tensor h = cast(x);
    for (const Level& level : down_) {
      if (!skips.empty()) h = ops::max_pool2d(h, 2, 2, 0);
      h = run(level.conv2, run(level.conv1, h, true), true);
      skips.push_back(h);
    }
    skips.pop_back();
    for (const Level& level : up_) {
      // Channels are halved before the pixels are doubled: a quarter of the work, and of the
      // memory.
      h = ops::upsample_twice(run(level.reduce, h, true));
      h = at::cat({std::exchange(skips.back(), {}), h}, 1);
      skips.pop_back();
      h = run(level.conv2, run(level.conv1, h, true), true);
    }
    return ops::conv2d(h, head_.weight, head_.bias, 1, 0);
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

 private:
  struct Level {
    ConvBn reduce, conv1, conv2;  // reduce on the way up only
  };
  std::vector<Level> down_, up_;
  Conv head_;
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
