#pragma once

#include <cstdint>

#include "ductile/nn/kernels/isa.h"

// The two memory passes of batch normalisation over a whole NHWC batch, on the OpenMP team of the
// calling thread; results do not depend on its size. Channels in multiples of 8.
namespace ductile::nn::kernels {

// out = act(scale * y + shift (+ residual)).
void norm_apply(const NormApply& all);

// The sums over the whole batch that the backward pass needs (and g where wanted).
void norm_reduce(const NormReduce& all);

}  // namespace ductile::nn::kernels
