#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/nn/batch_group.h"
#include "ductile/nn/ops.h"

// What both ways to normalise share: by our kernels (conv_bn.cc) and by ATen (batch_norm_aten.cc).
namespace ductile::nn::ops {

// Statistics of `count` values a channel become those of all members' values; returns how many
// those are. Sums in double: the squares' mean loses no digit that the float results could show.
template <class T>
double join_statistics(BatchGroup& group, double count, int64_t channels, T* mean, T* variance) {
  std::vector<double> sums(static_cast<size_t>(1 + 2 * channels));
  double* first = sums.data() + 1;
  double* second = first + channels;
  sums[0] = count;
  for (int64_t c = 0; c < channels; ++c) {
    const double m = mean[c];
    first[c] = count * m;
    second[c] = count * (m * m + variance[c]);
  }
  group.sum(sums);
  for (int64_t c = 0; c < channels; ++c) {
    const double m = first[c] / sums[0];
    mean[c] = static_cast<T>(m);
    variance[c] = static_cast<T>(std::max(0.0, second[c] / sums[0] - m * m));
  }
  return sums[0];
}

// What autograd nodes keep of the group: an address, which IValue holds as an integer.
inline int64_t address_of(BatchGroup* group) { return reinterpret_cast<int64_t>(group); }
inline BatchGroup* group_at(int64_t address) { return reinterpret_cast<BatchGroup*>(address); }

// act(y) by ATen.
at::Tensor activated(const at::Tensor& y, Activation act);

// act(batch_norm(y) + residual) in the type `out`, by ATen's operators, of y in the type of bn's
// parameters (float where x is half).
at::Tensor bn_act_aten(at::Tensor y, const BatchNorm& bn, const at::Tensor& residual,
                       Activation act, bool training, at::ScalarType out);

}  // namespace ductile::nn::ops
