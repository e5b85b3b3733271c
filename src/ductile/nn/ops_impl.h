#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/nn/kernels/conv.h"

// What the sources of the operators share.
namespace ductile::nn::ops {

bool has_storage(const at::Tensor& t);  // of a type that our kernels read, on the CPU
kernels::Storage storage_of(const at::Tensor& t);

inline at::Tensor in_type(const at::Tensor& t, at::ScalarType type) {
  return t.defined() ? t.to(type) : t;
}

inline at::Tensor nhwc(const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); }

inline at::Tensor empty_nhwc(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options().memory_format(at::MemoryFormat::ChannelsLast));
}

kernels::ConvShape conv_shape(const at::Tensor& x, const at::Tensor& w, int64_t stride,
                              int64_t padding);

// Whether our kernels do this convolution.
bool conv_covered(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding);

inline at::Tensor fp32_weight(const at::Tensor& w) { return w.to(at::kFloat).contiguous(); }

// Gradients of a convolution in x and w, as far as wanted, from `grad` (see kernels/conv.h).
torch::autograd::variable_list conv_gradients(const at::Tensor& x, const at::Tensor& w,
                                              int64_t stride, int64_t padding,
                                              const kernels::GradSource& grad, bool want_x,
                                              bool want_w);

// Whether a gradient is to be kept for one of these.
bool requires_grad(std::initializer_list<at::Tensor> tensors);

}  // namespace ductile::nn::ops
