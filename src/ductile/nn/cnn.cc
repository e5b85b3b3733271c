#include "ductile/nn/operator_model.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

class Cnn : public OperatorModel {
 public:
  explicit Cnn(const ModelArgs& args) : OperatorModel(args) {
    const int64_t width = args.options.width > 0 ? args.options.width : 16;
    const ConvBn conv1 =
        add_conv_bn("conv1", "bn1", args.info.channels, width, 3, 1, ConvInit::pytorch);
    const ConvBn conv2 = add_conv_bn("conv2", "bn2", width, 2 * width, 3, 1, ConvInit::pytorch);
    const int64_t pixels = (args.info.height / 4) * (args.info.width / 4);
    const Linear fc1 = add_linear("fc1", 2 * width * pixels, 4 * width);
    const Linear fc2 = add_linear("fc2", 4 * width, args.num_classes());

    Source h = add_max_pool("pool1", add_conv_bn_act("conv1", conv1, input(), true), 2, 2, 0);
    h = add_max_pool("pool2", add_conv_bn_act("conv2", conv2, h, true), 2, 2, 0);
    const auto run = [this](Inputs in, Inputs weights, int64_t) {
      return relu(ops::linear(ops::flatten(ops::whole_image(in[0])), weights[0], weights[1]));
    };
    h = add_columns("fc1", {h}, {fc1.weight, fc1.bias}, {{0, 0}, run});
    finish(add_dense("fc2", fc2, h, false));
  }

  bool prefers_channels_last() override { return true; }
};

}  // namespace

std::unique_ptr<Model> make_cnn(const ModelArgs& args) {
  require_images(args, 4);
  return std::make_unique<Cnn>(args);
}

}  // namespace ductile::nn
