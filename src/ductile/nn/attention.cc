#include <cmath>

#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>

#include "ductile/nn/attention_impl.h"
#include "ductile/nn/generator.h"
#include "ductile/nn/ops.h"
#include "ductile/nn/precision.h"

namespace ductile::nn {

at::Tensor dropped(const at::Tensor& x, double share) {
  if (share <= 0) return x;
  // As at::dropout does, which would draw from the one generator of all threads.
  const at::Tensor wide = widened(x);
  const at::Tensor factors = at::empty(wide.sizes(), wide.options());
  factors.bernoulli_(1 - share, own_generator()).div_(1 - share);
  return wide.mul(factors).to(x.scalar_type());
}

at::Tensor multi_head_attention(const at::Tensor& qkv, int64_t heads, const at::Tensor& hidden,
                                double dropout) {
  const int64_t batch = qkv.size(0), tokens = qkv.size(1), dim = qkv.size(2) / 3;
  const auto part = [&](int64_t i) {
    return widened(qkv.slice(2, i * dim, (i + 1) * dim))
        .reshape({batch, tokens, heads, dim / heads})
        .transpose(1, 2);
  };
  const at::Tensor q = part(0), k = part(1), v = part(2);
  const double scale = 1 / std::sqrt(static_cast<double>(dim / heads));
  // At least float: double in a model of doubles.
  const at::ScalarType wide = qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor scores = ops::matmul(q, k.transpose(-2, -1)).to(wide).mul(scale);
  if (hidden.defined()) scores = scores.masked_fill(hidden, -INFINITY);
  const at::Tensor weights = dropped(scores.softmax(-1), dropout).to(v.scalar_type());
  return ops::matmul(weights, v)
      .transpose(1, 2)
      .reshape({batch, tokens, dim})
      .to(qkv.scalar_type());
}

}  // namespace ductile::nn
