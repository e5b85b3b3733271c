#pragma once

#include <ATen/core/Tensor.h>

namespace ductile::nn::ops {

// Layer normalisation over the last dimension of x [..., D] (fp32), times weight [D] plus bias [D].
// Differentiable. Unlike ATen's, whose gradients of weight and bias are summed in as many pieces as
// there are threads, bit-equal for every number of threads.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);

}  // namespace ductile::nn::ops
