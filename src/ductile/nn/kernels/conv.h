#pragma once

#include <cstdint>

#include "ductile/nn/kernels/isa.h"

// Convolutions on NHWC activations, forward and backward, fp32 arithmetic on any storage type, but
// that bf16 values are multiplied as such where the processor does (Bf16Isa).
//
// 3x3 kernels of stride 1 run as Winograd F(4x4, 3x3), the rest as direct register-blocked
// products. Images are handled in groups that stay in the cache. Threads: OpenMP, the calling
// thread's team size. Results do not depend on the number of threads: the batch is cut by shape
// alone, and partial sums are joined in a fixed order.
namespace ductile::nn::kernels {

// Square kernel, same stride and zero padding on both axes, no groups, no dilation.
struct ConvShape {
  int64_t batch, height, width, in;
  int64_t out, kernel, stride, padding;

  int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  int64_t out_pixels() const { return batch * out_height() * out_width(); }
};

// Whether this processor and these functions can do the shape (out channels in multiples of 8).
bool conv_supported(const ConvShape& shape);

// Whether it is also expected to be faster than oneDNN, as measured by ductile_nn_bench: the
// filters of direct products have to stay in the caches, which those of ResNet-50's wide layers do
// not, and transforming wide Winograd filters has to pay over the tiles of the batch.
bool conv_preferred(const ConvShape& shape);

// y = x * weight. weight: fp32 [out, in, kernel, kernel]. Where mean is given, mean and variance
// (biased) receive each output channel's statistics over the batch, taken before y is rounded to
// its storage type.
void conv_forward(const ConvShape& shape, const void* x, const float* weight, Storage storage,
                  void* y, float* mean, float* variance);

// dx (null: not wanted) = gradient in the input, storage type as grad's; dw (null: not wanted) =
// gradient in the weight, fp32 [out, in, kernel, kernel]. Both are overwritten.
void conv_backward(const ConvShape& shape, const void* x, const float* weight,
                   const GradSource& grad, void* dx, float* dw);

}  // namespace ductile::nn::kernels
