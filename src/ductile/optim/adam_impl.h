#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ductile/optim/kernels_impl.h"
#include "ductile/optim/optimizer.h"

namespace ductile::optim {

// An eps as denominators take it. A job may set it to 0, or to what is 0 in fp32: a weight that has
// seen no gradient has then a step of 0 / 0.
inline float above_zero(double eps) {
  return std::max(static_cast<float>(eps), std::numeric_limits<float>::min());
}

// Of step `t` of Adam, counted from 1, at the learning rate `lr` and without weight decay.
inline kernels::AdamScalars adam_scalars(const StepInput& in, double lr, double eps, int64_t t) {
  const Hyper& h = in.hyper;
  const auto steps = static_cast<double>(t);
  return {.gradient_scale = in.gradient_scale,
          .l2 = 0,
          .beta1 = static_cast<float>(h.beta1),
          .one_minus_beta1 = static_cast<float>(1 - h.beta1),
          .beta2 = static_cast<float>(h.beta2),
          .one_minus_beta2 = static_cast<float>(1 - h.beta2),
          .keep = 1,
          .rate = static_cast<float>(lr / (1 - std::pow(h.beta1, steps))),
          .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(h.beta2, steps))),
          .eps = above_zero(eps)};
}

}  // namespace ductile::optim
