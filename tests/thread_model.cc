// A user's own model, of operators whose gradients round by the number of threads.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformerlayer.h>

#include "ductile/nn/torch_module.h"

struct Net : torch::nn::Module {
  static constexpr int64_t kChannels = 16;

  explicit Net(const ductile::nn::ModelArgs& args)
      : first(torch::nn::Conv2dOptions(args.info.channels, kChannels, 3).padding(1)),
        second(torch::nn::Conv2dOptions(kChannels, kChannels, 3).stride(2)),
        norm(torch::nn::LayerNormOptions({kChannels})),
        encoder(torch::nn::TransformerEncoderLayerOptions(kChannels, 2).dim_feedforward(32)),
        out(kChannels, args.num_classes()) {
    register_module("first", first);
    register_module("second", second);
    register_module("prelu", prelu);
    register_module("norm", norm);
    register_module("encoder", encoder);
    register_module("out", out);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor pixels_BPC = prelu(second(first(x).relu())).flatten(2).transpose(1, 2);
    return out(encoder(norm(pixels_BPC).transpose(0, 1)).mean(0));
  }

  torch::nn::Conv2d first, second;
  torch::nn::PReLU prelu;
  torch::nn::LayerNorm norm;
  torch::nn::TransformerEncoderLayer encoder;
  torch::nn::Linear out;
};

DUCTILE_EXPORT_TORCH_MODULE(Net)
