#include "ductile/nn/layers.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

class Cnn : public LayerModel {
 public:
  explicit Cnn(const ModelArgs& args) : LayerModel(args) {
    const int64_t width = args.options.width > 0 ? args.options.width : 16;
    conv1_ = add_conv_bn("conv1", "bn1", args.info.channels, width, 3, 1, ConvInit::pytorch);
    conv2_ = add_conv_bn("conv2", "bn2", width, 2 * width, 3, 1, ConvInit::pytorch);
    const int64_t pixels = (args.info.height / 4) * (args.info.width / 4);
    fc1_ = add_linear("fc1", 2 * width * pixels, 4 * width);
    fc2_ = add_linear("fc2", 4 * width, args.num_classes());
  }

  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor h = ops::max_pool2d(run(conv1_, cast(x), true), 2, 2, 0);
    h = ops::max_pool2d(run(conv2_, h, true), 2, 2, 0);
    return fc2_(relu(fc1_(ops::whole_image(h).flatten(1))));
  }

  bool prefers_channels_last() override { return true; }

 private:
  ConvBn conv1_, conv2_;
  Linear fc1_, fc2_;
};

}  // namespace

std::unique_ptr<Model> make_cnn(const ModelArgs& args) {
  require_images(args, 4);
  return std::make_unique<Cnn>(args);
}

}  // namespace ductile::nn
