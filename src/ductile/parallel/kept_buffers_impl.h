#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "ductile/nn/operators.h"

namespace ductile::parallel {

// The values of an operator's buffers before a run that is not to move them.
class KeptBuffers {
 public:
  explicit KeptBuffers(const nn::Operator& op) : buffers_(op.buffers) {
    const at::NoGradGuard no_grad;
    for (const nn::NamedTensor& b : buffers_) before_.push_back(b.tensor.clone());
  }
  void put_back() const {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      // What an operator has saved of the buffer for its backward pass stays good.
      buffers_[i].tensor.variable_data().copy_(before_[i]);
    }
  }

 private:
  const std::vector<nn::NamedTensor>& buffers_;
  nn::Tensors before_;
};

}  // namespace ductile::parallel
