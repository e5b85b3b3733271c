#pragma once

#include <array>

#include <ATen/core/Tensor.h>

// Convolutions that our kernels leave to others, bit-equal for every number of threads. oneDNN's
// own are not: it cuts the sum of a weight's gradient by the number of threads, and in 1x1
// convolutions other sums, too.
namespace ductile::nn::ops {

// at::conv2d with the same stride and padding on both axes; bias may be absent.
at::Tensor aten_conv2d(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                       int64_t stride, int64_t padding);

// Its gradients in x, w and bias, as far as wanted, from dy; all of one type. Not differentiable.
std::array<at::Tensor, 3> aten_conv2d_backward(const at::Tensor& dy, const at::Tensor& x,
                                               const at::Tensor& w, int64_t stride, int64_t padding,
                                               std::array<bool, 3> wanted);

}  // namespace ductile::nn::ops
