#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <torch/nn/functional/instancenorm.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include "ductile/base/error.h"
#include "ductile/nn/custom_model.h"

// A torch::nn::Module as a Model, in one line:
//
//   DUCTILE_EXPORT_TORCH_MODULE(Net)   // struct Net : torch::nn::Module { Net(const ModelArgs&);
//   ... }
//
// Net::forward takes a tensor and gives logits. The one public header that brings in torch::nn,
// and so costs what that costs; include it in the model's source only.
namespace ductile::nn {

// Computes in float: torch::nn layers know nothing of float masters with low-precision copies.
template <class Net>
class TorchModuleModel : public Model {
 public:
  explicit TorchModuleModel(const ModelArgs& args) {
    if (args.precision != "fp32") {
      fail(ErrorCode::invalid_argument,
           "a torch::nn module trains in fp32 only, not {}; set train.precision = \"fp32\", or "
           "derive from ductile::nn::LayerModel",
           args.precision);
    }
    at::manual_seed(args.seed);  // torch::nn layers initialise themselves from the global generator
    net_ = std::make_shared<Net>(args);
  }

  at::Tensor forward(const at::Tensor& x) override { return net_->forward(x); }

  std::vector<NamedTensor> parameters() override {
    std::vector<NamedTensor> all;
    collect(*net_, "", [&](const std::string& at, torch::nn::Module& m, bool norm) {
      for (auto& p : m.named_parameters(false)) {
        all.push_back({at + p.key(), p.value(), norm, !p.value().requires_grad()});
      }
    });
    return all;
  }

  // Floating-point buffers; batch counters are left out, as PyTorch fills them in when loading.
  std::vector<NamedTensor> buffers() override {
    std::vector<NamedTensor> all;
    collect(*net_, "", [&](const std::string& at, torch::nn::Module& m, bool norm) {
      for (auto& b : m.named_buffers(false)) {
        if (b.value().is_floating_point()) all.push_back({at + b.key(), b.value(), norm});
      }
    });
    return all;
  }

  void train(bool on) override {
    Model::train(on);
    net_->train(on);
  }

 protected:
  std::shared_ptr<Net> net_;

 private:
  template <class Visit>
  static void collect(torch::nn::Module& m, const std::string& at, const Visit& visit) {
    using namespace torch::nn;
    const bool norm = m.as<BatchNorm1dImpl>() || m.as<BatchNorm2dImpl>() ||
                      m.as<BatchNorm3dImpl>() || m.as<LayerNormImpl>() || m.as<GroupNormImpl>() ||
                      m.as<InstanceNorm1dImpl>() || m.as<InstanceNorm2dImpl>() ||
                      m.as<InstanceNorm3dImpl>();
    visit(at, m, norm);
    for (auto& child : m.named_children()) collect(*child.value(), at + child.key() + ".", visit);
  }
};

}  // namespace ductile::nn

// A second argument as of DUCTILE_EXPORT_MODEL.
#define DUCTILE_EXPORT_TORCH_MODULE(Net, ...)                          \
  DUCTILE_EXPORT_MODEL([](const ::ductile::nn::ModelArgs& args) {      \
    return std::unique_ptr<::ductile::nn::Model>(                      \
        std::make_unique<::ductile::nn::TorchModuleModel<Net>>(args)); \
  } __VA_OPT__(, ) __VA_ARGS__)
