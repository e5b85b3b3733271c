#pragma once

#include <ATen/core/Tensor.h>

namespace ductile::nn::ops {

// at::conv2d with the same stride and padding on both axes (bias may be absent), bit-equal for
// every number of threads: oneDNN sums the weight's gradient in as many parts as there are threads,
// so one thread computes that. (Several, a piece of the channels each, would be faster, but oneDNN
// 2.6 corrupts memory where several threads make primitives.)
at::Tensor aten_conv2d(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                       int64_t stride, int64_t padding);

}  // namespace ductile::nn::ops
