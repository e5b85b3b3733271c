#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "ductile/nn/ops.h"
#include "ductile/nn/spatial.h"

// What the operators of ops.h do while a split is current: they fetch what the own part of the
// output needs, and call themselves on that with no split and no padding.
namespace ductile::nn::spatial {

at::Tensor conv2d(SpatialSplit& split, const at::Tensor& x, const at::Tensor& w,
                  const at::Tensor& bias, int64_t stride, int64_t padding);
at::Tensor conv_bn_act(SpatialSplit& split, const at::Tensor& x, const at::Tensor& w,
                       int64_t stride, int64_t padding, const ops::BatchNorm& bn,
                       const at::Tensor& residual, ops::Activation act, bool training);
at::Tensor bn_act(SpatialSplit& split, const at::Tensor& x, const ops::BatchNorm& bn,
                  ops::Activation act, bool training);
at::Tensor bias_act(SpatialSplit& split, const at::Tensor& x, const at::Tensor& bias,
                    ops::Activation act);
at::Tensor max_pool2d(SpatialSplit& split, const at::Tensor& x, int64_t kernel, int64_t stride,
                      int64_t padding);
at::Tensor global_avg_pool(SpatialSplit& split, const at::Tensor& x);
at::Tensor subsample(SpatialSplit& split, const at::Tensor& x, int64_t stride);
at::Tensor upsample_twice(SpatialSplit& split, const at::Tensor& x);
at::Tensor whole_image(SpatialSplit& split, const at::Tensor& x);

// x, whose gradient counts once for all cells together.
at::Tensor shared_by_cells(SpatialSplit& split, const at::Tensor& x);

}  // namespace ductile::nn::spatial
