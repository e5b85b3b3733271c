// A torch::nn::Sequential, whose children are operators.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "ductile/nn/torch_sequential.h"

namespace {

struct Net : torch::nn::SequentialImpl {
  explicit Net(const ductile::nn::ModelArgs& args) {
    const int64_t pixels = args.info.channels * args.info.height * args.info.width;
    push_back("flatten", torch::nn::Flatten());
    push_back("hidden", torch::nn::Linear(pixels, 32));
    push_back("norm", torch::nn::BatchNorm1d(32));
    push_back("relu", torch::nn::ReLU());
    push_back("dropout", torch::nn::Dropout(0.1));
    push_back("out", torch::nn::Linear(32, args.num_classes()));
  }
};

}  // namespace

DUCTILE_EXPORT_TORCH_SEQUENTIAL(Net)
