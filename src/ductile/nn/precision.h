#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

// Mixed precision in the zoo. With "bf16" or "fp16" a model's parameters are the low-precision
// copies (the optimiser keeps the float masters and rewrites the copies after each step) and their
// gradients arrive in that type; parameters and buffers of normalisation layers stay float, and so
// do normalisation statistics, softmax and losses.
//
// Storage and arithmetic are separate matters. Values between operators are always stored in the
// low type. An operator multiplies in it only where the processor does so natively (avx512_bf16
// with or without amx_bf16, a GPU); elsewhere it widens its inputs to float, computes, and rounds
// the result once: the same rounding points, without libtorch's slow reference kernels (and 1.13
// has none for half on CPUs).
namespace ductile::nn {

// "fp32", "bf16" or "fp16"; throws invalid_argument for another name. Also "fp64", which no job can
// ask for: a model in which everything is double, for comparisons that rounding must not blur.
at::ScalarType scalar_type_of(std::string_view precision);

// True where tensors of this type on this device are to be widened to float for arithmetic. Depends
// on the processor only, so it is the same all through a run.
bool widen(const at::Tensor& x);

// x as float where widen(x), else x itself; differentiable, the gradient comes in the type of x.
at::Tensor widened(const at::Tensor& x);

}  // namespace ductile::nn
