#pragma once

#include <cstdint>

#include "ductile/nn/kernels/isa.h"

// The memory passes of batch normalisation over a whole NHWC batch, on the OpenMP team of the
// calling thread; results do not depend on its size. Channels in multiples of 8.
namespace ductile::nn::kernels {

// out = act(scale * y + shift (+ residual)).
void norm_apply(const NormApply& all);

// The same with a max pool behind it, whose windows tile the images: what lies between is not kept.
// `out` is not read; `pooled` and `index` are those of max_pool().
void norm_apply_pool(const NormApply& all, const MaxPool& pool, void* pooled, uint8_t* index);

// Mean and variance (biased) of each channel.
void channel_statistics(Storage storage, const void* y, int64_t pixels, int64_t channels,
                        float* mean, float* variance);

// The gradient that `source` makes for each pixel, written out as `storage`.
void write_gradient(const GradSource& source, int64_t pixels, int64_t channels, Storage storage,
                    void* out);

// The sums over the whole batch that the backward pass needs (and g where wanted).
void norm_reduce(const NormReduce& all);
// The same, to the bit, where `grad` is the gradient behind a max pool. g cannot be wanted.
void norm_reduce_pool(const NormReduce& all, const MaxPool& pool, const uint8_t* index);

}  // namespace ductile::nn::kernels
