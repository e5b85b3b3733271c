#include "ductile/sched/goodput.h"

#include <algorithm>

#include "ductile/sched/batch_search_impl.h"

namespace ductile::sched {
namespace {

constexpr double kLeastCoefficient = 1e-8;  // least value of a coefficient, as in the fit

}  // namespace

double gradient_seconds(const PerfParams& perf, double local_batch) {
  return perf.alpha_c + perf.beta_c * local_batch;
}

double sync_seconds(const PerfParams& perf, int32_t nodes, int32_t replicas) {
  const double more = std::max<double>(replicas - 2, kLeastCoefficient);
  if (nodes > 1) return perf.alpha_n + perf.beta_n * more;
  if (replicas > 1) return perf.alpha_r + perf.beta_r * more;
  return kLeastCoefficient + kLeastCoefficient * more;
}

double step_seconds(const PerfParams& perf, int32_t nodes, int32_t replicas, int32_t local_batch,
                    int32_t accumulation) {
  const double grad = gradient_seconds(perf, local_batch);
  return accumulation * grad + fitted_step(grad, sync_seconds(perf, nodes, replicas), perf.gamma);
}

double goodput(const PerfParams& perf, const GradientNoise& noise, const BatchLimits& limits,
               int32_t nodes, int32_t replicas, int32_t local_batch, int32_t accumulation) {
  const double batch = static_cast<double>(replicas) * local_batch * (accumulation + 1);
  return batch / step_seconds(perf, nodes, replicas, local_batch, accumulation) *
         efficiency(noise, batch / limits.init_batch);
}

BatchChoice best_batch(const PerfParams& perf, const GradientNoise& noise,
                       const BatchLimits& limits, int32_t nodes, int32_t replicas) {
  const double sync = sync_seconds(perf, nodes, replicas);
  return search_batch(noise, limits, replicas, [&](int32_t local, int32_t accumulation) {
    const double grad = gradient_seconds(perf, local);
    return accumulation * grad + fitted_step(grad, sync, perf.gamma);
  });
}

BatchChoice split_batch(const BatchLimits& limits, int32_t replicas, int32_t batch) {
  const int32_t local = ceil_div(batch, replicas);
  BatchChoice choice;
  choice.accumulation = ceil_div(local, limits.max_local) - 1;
  if (replicas == 1 && batch > limits.init_batch)
    choice.accumulation = std::max(choice.accumulation, 1);
  choice.local_batch = ceil_div(local, choice.accumulation + 1);
  choice.local_batch =
      std::min(choice.local_batch, limits.max_batch / (replicas * (choice.accumulation + 1)));
  return choice;
}

}  // namespace ductile::sched
