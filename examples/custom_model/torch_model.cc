// A torch::nn::Module handed over as it is; it trains in fp32.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "ductile/nn/torch_module.h"

struct Net : torch::nn::Module {
  explicit Net(const ductile::nn::ModelArgs& args)
      : hidden(args.info.channels * args.info.height * args.info.width, 32),
        norm(32),
        out(32, args.num_classes()) {
    register_module("hidden", hidden);
    register_module("norm", norm);
    register_module("out", out);
  }

  at::Tensor forward(const at::Tensor& x) { return out(norm(hidden(x.flatten(1))).relu()); }

  torch::nn::Linear hidden;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear out;
};

DUCTILE_EXPORT_TORCH_MODULE(Net)
