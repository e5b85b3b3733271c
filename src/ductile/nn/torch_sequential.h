#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include <torch/nn/modules/container/sequential.h>

#include "ductile/nn/operators.h"
#include "ductile/nn/torch_module.h"

// A torch::nn::Sequential as a Model whose children are its operators: `ductile profile` measures
// each, and a pipeline is cut between them.
//
//   struct Net : torch::nn::SequentialImpl {
//     explicit Net(const ModelArgs& args) { push_back("hidden", torch::nn::Linear(784, 32)); ... }
//   };
//   DUCTILE_EXPORT_TORCH_SEQUENTIAL(Net)
//
// Each child takes one tensor and gives one, and changes none in place. As dear to include as
// torch_module.h.
namespace ductile::nn {

template <class Net>
class TorchSequentialModel : public TorchModuleModel<Net>, public DeclaresOperators {
 public:
  explicit TorchSequentialModel(const ModelArgs& args) : TorchModuleModel<Net>(args) {
    Net& net = *this->net_;
    const auto names = net.named_children();
    if (net.is_empty() || names.size() != net.size()) {
      fail(ErrorCode::invalid_argument,
           "a torch::nn::Sequential with {} children in a row and {} in all; each is an operator, "
           "so it has some, and no others beside them",
           net.size(), names.size());
    }
    Source last{kModelInput, 0};
    size_t number = 0;
    for (const torch::nn::AnyModule& child : net) {
      last = {graph_.add(operator_of(names[number++].key(), child, last)), 0};
    }
    graph_.set_results({last});
  }

  at::Tensor forward(const at::Tensor& x) override {
    return graph_.run(std::span<const at::Tensor>(&x, 1)).front();
  }
  const OperatorGraph& operators() const override { return graph_; }

 private:
  Operator operator_of(const std::string& name, const torch::nn::AnyModule& child, Source input) {
    Operator op;
    op.name = name;
    op.kind = kind_of_class(child.ptr()->name());
    op.inputs = {input};
    const std::string prefix = name + ".";
    for (NamedTensor& p : this->parameters()) {
      if (p.name.starts_with(prefix)) op.parameters.push_back(std::move(p));
    }
    for (NamedTensor& b : this->buffers()) {
      if (b.name.starts_with(prefix)) op.buffers.push_back(std::move(b));
    }
    op.random = true;  // nobody knows
    op.run = [module = torch::nn::AnyModule(child)](std::span<const at::Tensor> in) mutable {
      return Tensors{module.forward(in[0])};
    };
    return op;
  }

  // "torch::nn::LinearImpl" -> "Linear"
  static std::string kind_of_class(std::string name) {
    if (const size_t colon = name.rfind(':'); colon != std::string::npos) name.erase(0, colon + 1);
    if (name.ends_with("Impl")) name.resize(name.size() - 4);
    return name;
  }

  OperatorGraph graph_;
};

}  // namespace ductile::nn

// A second argument as of DUCTILE_EXPORT_MODEL.
#define DUCTILE_EXPORT_TORCH_SEQUENTIAL(Net, ...)                          \
  DUCTILE_EXPORT_MODEL([](const ::ductile::nn::ModelArgs& args) {          \
    return std::unique_ptr<::ductile::nn::Model>(                          \
        std::make_unique<::ductile::nn::TorchSequentialModel<Net>>(args)); \
  } __VA_OPT__(, ) __VA_ARGS__)
