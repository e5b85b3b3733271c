#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

// What transformers share. Shapes: B batch, T tokens, D width.
namespace ductile::nn {

// A share of the elements, drawn from this thread's generator (generator.h), set to 0 and the
// others enlarged; x itself where the share is 0.
at::Tensor dropped(const at::Tensor& x, double share);

// Attention with several heads (Vaswani et al., "Attention is all you need", 2017, section 3.2):
// queries, keys and values side by side [B, T, 3D] -> [B, T, D], with scores and softmax in float
// at least. `hidden` [T, T] is true where a token (row) does not see another; undefined: nowhere.
// `dropout` is the share of the weights that is dropped.
at::Tensor multi_head_attention(const at::Tensor& qkv, int64_t heads, const at::Tensor& hidden,
                                double dropout);

}  // namespace ductile::nn
