#include "ductile/sched/goodput.h"

#include <algorithm>
#include <cmath>

namespace ductile::sched {
namespace {

constexpr int kCandidates = 50;
constexpr double kSlack = 1e-8;  // keeps a quotient that should be whole from rounding up
constexpr double kFloor = 1e-8;  // least value of a coefficient, as in the fit

int32_t ceil_div(double a, double b) { return static_cast<int32_t>(std::ceil(a / b - kSlack)); }

// (a^g + b^g)^(1/g) without overflow: the larger is taken out.
double p_norm(double a, double b, double g) {
  const double high = std::max(a, b), low = std::min(a, b);
  if (high <= 0) return 0;
  return high * std::exp(std::log1p(std::pow(low / high, g)) / g);
}

}  // namespace

double gradient_seconds(const PerfParams& perf, double local_batch) {
  return perf.alpha_c + perf.beta_c * local_batch;
}

double sync_seconds(const PerfParams& perf, int32_t nodes, int32_t replicas) {
  const double more = std::max<double>(replicas - 2, kFloor);
  if (nodes > 1) return perf.alpha_n + perf.beta_n * more;
  if (replicas > 1) return perf.alpha_r + perf.beta_r * more;
  return kFloor + kFloor * more;
}

double step_seconds(const PerfParams& perf, int32_t nodes, int32_t replicas, int32_t local_batch,
                    int32_t accumulation) {
  const double grad = gradient_seconds(perf, local_batch);
  return accumulation * grad + p_norm(grad, sync_seconds(perf, nodes, replicas), perf.gamma);
}

double gain(const GradientNoise& noise, double scale) {
  const double denominator = noise.var / scale + noise.sqr;
  return denominator > 0 ? (noise.var + noise.sqr) / denominator : 1.0;
}

double efficiency(const GradientNoise& noise, double scale) { return gain(noise, scale) / scale; }

double adascale_factor(const GradientNoise& noise, double scale) { return gain(noise, scale); }

double square_root_factor(double scale) { return std::sqrt(scale); }

double goodput(const PerfParams& perf, const GradientNoise& noise, const BatchLimits& limits,
               int32_t nodes, int32_t replicas, int32_t local_batch, int32_t accumulation) {
  const double batch = static_cast<double>(replicas) * local_batch * (accumulation + 1);
  return batch / step_seconds(perf, nodes, replicas, local_batch, accumulation) *
         efficiency(noise, batch / limits.init_batch);
}

BatchChoice best_batch(const PerfParams& perf, const GradientNoise& noise,
                       const BatchLimits& limits, int32_t nodes, int32_t replicas) {
  const double low =
      std::max<double>(limits.init_batch, static_cast<double>(limits.min_local) * replicas);
  const double ratio = std::pow(limits.max_batch / low, 1.0 / (kCandidates - 1));
  const double sync = sync_seconds(perf, nodes, replicas);
  BatchChoice best;
  int32_t last_local = -1, last_accumulation = -1;
  double batch = low;
  for (int i = 0; i < kCandidates; ++i, batch *= ratio) {
    const double local = (i == kCandidates - 1 ? limits.max_batch : batch) / replicas;
    int32_t accumulation = ceil_div(local, limits.max_local) - 1;
    if (replicas == 1 && local > limits.init_batch + kSlack)
      accumulation = std::max(accumulation, 1);
    const int32_t atomic = ceil_div(local, accumulation + 1);
    if (atomic == last_local && accumulation == last_accumulation) continue;
    last_local = atomic;
    last_accumulation = accumulation;
    if (atomic < limits.min_local || atomic > limits.max_local) continue;
    const double whole = static_cast<double>(replicas) * atomic * (accumulation + 1);
    const double grad = gradient_seconds(perf, atomic);
    const double seconds = accumulation * grad + p_norm(grad, sync, perf.gamma);
    const double value = whole / seconds * efficiency(noise, whole / limits.init_batch);
    if (value > best.goodput) best = {value, atomic, accumulation};
  }
  return best;
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
