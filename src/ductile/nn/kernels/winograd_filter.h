#pragma once

#include <cstdint>

// The filter side of Winograd F(4x4, 3x3); weights and their gradients are fp32 [out, in, 3, 3].
namespace ductile::nn::kernels {

// u[f, i, o] = (G w[o, i] G')[f] for inputs [first, last); f = 0..35.
void winograd_filter(const float* weight, int64_t in, int64_t out, int64_t first, int64_t last,
                     float* u);

// u[f, o, i] = (G rotated(w[o, i]) G')[f] for outputs [first, last): the backward-data filter.
void winograd_filter_rotated(const float* weight, int64_t in, int64_t out, int64_t first,
                             int64_t last, float* u);

// dw[o, i] = G' du[., i, o] G for inputs [first, last), du being the sum of `parts` consecutive
// arrays [36, in, out], added in order.
void winograd_filter_grad(const float* du, int64_t parts, int64_t in, int64_t out, int64_t first,
                          int64_t last, float* dw);

}  // namespace ductile::nn::kernels
