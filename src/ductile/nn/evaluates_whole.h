#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/nn/model.h"

namespace ductile::nn {

// A model that declares operators (operators.h) which are those of training alone: dropout draws in
// them, and batch norm counts. In evaluation mode only its forward() runs it. As DeclaresOperators,
// an interface of its own, so that libraries of users' models need not be built again.
class EvaluatesWhole {
 public:
  virtual ~EvaluatesWhole();
};

// A model of several inputs whose forward pass is not that of its operators in any mode. Where the
// inputs are more than one, nn::forward() calls this.
class ForwardsSeveral {
 public:
  virtual ~ForwardsSeveral();
  virtual at::Tensor forward_several(std::span<const at::Tensor> inputs) = 0;
};

// A model whose training passes are those of some numbers of samples alone: it was captured so.
class TakesSomeSamples {
 public:
  virtual ~TakesSomeSamples();
  virtual std::vector<int64_t> numbers_of_samples() const = 0;  // ascending
};

// Those of the model; none: it takes any number.
std::vector<int64_t> numbers_of_samples(const Model& model);

// Whether the model's operators, one by one, give what its forward() gives in evaluation mode.
bool operators_evaluate(const Model& model);

}  // namespace ductile::nn
