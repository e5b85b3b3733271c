#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ductile/sched/goodput.h"

namespace ductile::sched {

inline constexpr int kBatchCandidates = 50;
inline constexpr double kQuotientSlack = 1e-8;  // keeps one that is whole from being rounded up

inline int32_t ceil_div(double a, double b) {
  return static_cast<int32_t>(std::ceil(a / b - kQuotientSlack));
}

// (gradient^gamma + sync^gamma)^(1/gamma) without overflow: the larger is taken out.
inline double fitted_step(double gradient, double sync, double gamma) {
  const double high = std::max(gradient, sync), low = std::min(gradient, sync);
  if (high <= 0) return 0;
  return high * std::exp(std::log1p(std::pow(low / high, gamma)) / gamma);
}

// The search of best_batch(): seconds(local batch, accumulation) of a whole step.
template <typename Seconds>
BatchChoice search_batch(const GradientNoise& noise, const BatchLimits& limits, int32_t replicas,
                         const Seconds& seconds) {
  const double low =
      std::max<double>(limits.init_batch, static_cast<double>(limits.min_local) * replicas);
  const double ratio = std::pow(limits.max_batch / low, 1.0 / (kBatchCandidates - 1));
  BatchChoice best;
  int32_t last_local = -1, last_accumulation = -1;
  double batch = low;
  for (int i = 0; i < kBatchCandidates; ++i, batch *= ratio) {
    const double local = (i == kBatchCandidates - 1 ? limits.max_batch : batch) / replicas;
    int32_t accumulation = ceil_div(local, limits.max_local) - 1;
    if (replicas == 1 && local > limits.init_batch + kQuotientSlack)
      accumulation = std::max(accumulation, 1);
    const int32_t atomic = ceil_div(local, accumulation + 1);
    if (atomic == last_local && accumulation == last_accumulation) continue;
    last_local = atomic;
    last_accumulation = accumulation;
    if (atomic < limits.min_local || atomic > limits.max_local) continue;
    const double whole = static_cast<double>(replicas) * atomic * (accumulation + 1);
    const double value =
        whole / seconds(atomic, accumulation) * efficiency(noise, whole / limits.init_batch);
    if (value > best.goodput) best = {value, atomic, accumulation};
  }
  return best;
}

}  // namespace ductile::sched
