// An image classifier made of Ductile's fused operators: it trains in fp32, bf16 and fp16.
#include "ductile/nn/custom_model.h"
#include "ductile/nn/layers.h"

namespace {

using ductile::nn::ConvBn;
using ductile::nn::ConvInit;
using ductile::nn::Linear;
using ductile::nn::Model;
using ductile::nn::ModelArgs;

class TinyNet : public ductile::nn::LayerModel {
 public:
  explicit TinyNet(const ModelArgs& args) : LayerModel(args) {
    const int64_t width = args.options.width > 0 ? args.options.width : 16;
    stem_ =
        add_conv_bn("stem.conv", "stem.bn", args.info.channels, width, 3, 2, ConvInit::he_fan_out);
    body_ = add_conv_bn("body.conv", "body.bn", width, width, 3, 1, ConvInit::he_fan_out);
    head_ = add_linear("head", width, args.num_classes());
  }

  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor h = run(stem_, cast(x), /*relu=*/true);
    return head_(ductile::nn::ops::global_avg_pool(run(body_, h, /*relu=*/true, /*residual=*/h)));
  }

  bool prefers_channels_last() override { return true; }

 private:
  ConvBn stem_, body_;
  Linear head_;
};

std::unique_ptr<Model> make(const ModelArgs& args) { return std::make_unique<TinyNet>(args); }

}  // namespace

// Made of Ductile's operators alone: its bits do not depend on the number of compute threads.
DUCTILE_EXPORT_MODEL(make, ductile::nn::Threads::any)
