#include <optional>
#include <string>
#include <vector>

#include "ductile/nn/operator_model.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

struct Block {
  std::string name;
  std::vector<ConvBn> convs;  // two of 3x3, or the 1x1, 3x3, 1x1 of a bottleneck
  std::optional<ConvBn> downsample;
  int64_t stride = 1, in = 0, out = 0;
};

// What tells the family's members apart.
struct Variant {
  std::vector<int64_t> blocks;  // a stage
  int64_t width;                // of the first stage; each next has twice as many channels
  bool bottleneck;              // blocks end four times as wide
  bool large_images;            // 7x7 stem with pooling, not 3x3
  bool learnt_shortcuts;        // where the shape changes; else padded (option A)
};

class ResNet : public OperatorModel {
 public:
  ResNet(const ModelArgs& args, const Variant& variant) : OperatorModel(args) {
    const int64_t expansion = variant.bottleneck ? 4 : 1;
    const auto layer = [&](const std::string& conv, const std::string& bn, int64_t in, int64_t out,
                           int64_t kernel, int64_t stride) {
      return add_conv_bn(conv, bn, in, out, kernel, stride, ConvInit::he_fan_out);
    };
    int64_t width = args.options.width > 0 ? args.options.width : variant.width;
    const ConvBn stem = variant.large_images
                            ? layer("conv1", "bn1", args.info.channels, width, 7, 2)
                            : layer("conv1", "bn1", args.info.channels, width, 3, 1);
    std::vector<Block> blocks;
    int64_t in = width;
    for (size_t stage = 0; stage < variant.blocks.size(); ++stage, width *= 2) {
      for (int64_t i = 0; i < variant.blocks[stage]; ++i) {
        const std::string at = "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".";
        Block block;
        block.name = at;
        block.in = in;
        block.stride = stage > 0 && i == 0 ? 2 : 1;
        block.out = width * expansion;
        if (variant.bottleneck) {
          block.convs = {layer(at + "conv1", at + "bn1", in, width, 1, 1),
                         layer(at + "conv2", at + "bn2", width, width, 3, block.stride),
                         layer(at + "conv3", at + "bn3", width, block.out, 1, 1)};
        } else {
          block.convs = {layer(at + "conv1", at + "bn1", in, width, 3, block.stride),
                         layer(at + "conv2", at + "bn2", width, width, 3, 1)};
        }
        if (variant.learnt_shortcuts && (block.stride != 1 || in != block.out)) {
          block.downsample =
              layer(at + "downsample.0", at + "downsample.1", in, block.out, 1, block.stride);
        }
        blocks.push_back(std::move(block));
        in = width * expansion;
      }
    }
    const Linear fc = add_linear("fc", in, args.num_classes());

    Source h = add_conv_bn_act("conv1", stem, input(), true);
    if (variant.large_images) h = add_max_pool("maxpool", h, 3, 2, 1);
    for (const Block& block : blocks) h = add_block(block, h);
    h = OperatorModel::add("avgpool", "pool", {h}, {},
                           [](Inputs x) { return ops::global_avg_pool(x[0]); });
    finish(add_dense("fc", fc, h, false));
  }

  bool prefers_channels_last() override { return true; }

 private:
  Source add_block(const Block& block, Source x) {
    Source shortcut = x;
    if (block.downsample) {
      shortcut = add_conv_bn_act(block.name + "downsample.0", *block.downsample, x, false);
    } else if (block.stride != 1 || block.in != block.out) {
      // Option A: every second pixel, and zeros for the channels that are new.
      shortcut = add(block.name + "shortcut", "pad", {x}, {},
                     [stride = block.stride, out = block.out](Inputs in) {
                       return ops::subsample(in[0], stride, out);
                     });
    }
    Source h = x;
    for (size_t i = 0; i + 1 < block.convs.size(); ++i) {
      h = add_conv_bn_act(block.name + "conv" + std::to_string(i + 1), block.convs[i], h, true);
    }
    return add_conv_bn_act(block.name + "conv" + std::to_string(block.convs.size()),
                           block.convs.back(), h, shortcut);
  }
};

std::unique_ptr<Model> make(const ModelArgs& args, const Variant& variant) {
  require_images(args, variant.large_images ? 32 : 4);
  return std::make_unique<ResNet>(args, variant);
}

}  // namespace

template <int64_t kBlocks>
std::unique_ptr<Model> make_resnet_cifar(const ModelArgs& args) {
  return make(args, {{kBlocks, kBlocks, kBlocks},
                     16,
                     /*bottleneck=*/false,
                     /*large_images=*/false,
                     /*learnt_shortcuts=*/false});
}
template std::unique_ptr<Model> make_resnet_cifar<1>(const ModelArgs&);
template std::unique_ptr<Model> make_resnet_cifar<3>(const ModelArgs&);
template std::unique_ptr<Model> make_resnet_cifar<5>(const ModelArgs&);
template std::unique_ptr<Model> make_resnet_cifar<9>(const ModelArgs&);

std::unique_ptr<Model> make_resnet18(const ModelArgs& args) {
  return make(args, {{2, 2, 2, 2},
                     64,
                     /*bottleneck=*/false,
                     /*large_images=*/true,
                     /*learnt_shortcuts=*/true});
}

std::unique_ptr<Model> make_resnet18_cifar(const ModelArgs& args) {
  return make(args, {{2, 2, 2, 2},
                     64,
                     /*bottleneck=*/false,
                     /*large_images=*/false,
                     /*learnt_shortcuts=*/true});
}

std::unique_ptr<Model> make_resnet50(const ModelArgs& args) {
  return make(args, {{3, 4, 6, 3},
                     64,
                     /*bottleneck=*/true,
                     /*large_images=*/true,
                     /*learnt_shortcuts=*/true});
}

}  // namespace ductile::nn
