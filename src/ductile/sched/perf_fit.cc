#include "ductile/sched/perf_fit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ductile/base/error.h"

namespace ductile::sched {
namespace {

constexpr int kParams = 7;
constexpr double kFloor = 1e-8;
constexpr double kMostGamma = 10;
using Vector = std::array<double, kParams>;

PerfParams from_vector(const Vector& v) { return {v[0], v[1], v[2], v[3], v[4], v[5], v[6]}; }

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (int i = 0; i < kParams; ++i) sum += a[i] * b[i];
  return sum;
}

double objective(const PerfParams& perf, std::span<const StepSample> samples, double smooth,
                 double* gradient) {
  double error_grad = 0, error_step = 0;
  Vector d_grad{}, d_step{};
  for (const StepSample& sample : samples) {
    const double grad = gradient_seconds(perf, sample.local_batch);
    const double sync = sync_seconds(perf, sample.nodes, sample.replicas);
    const double more = std::max<double>(sample.replicas - 2, kFloor);
    const double log_grad = std::log(grad), log_sync = std::log(sync), g = perf.gamma;
    const double e1 = log_grad - std::log(sample.gradient_seconds);
    // log of the p-norm, the larger taken out
    const double high = std::max(log_grad, log_sync);
    const double a = std::exp(g * (log_grad - high)), b = std::exp(g * (log_sync - high));
    const double log_step = high + std::log(a + b) / g;
    const double e2 = log_step - std::log(sample.step_seconds);
    error_grad += e1 * e1;
    error_step += e2 * e2;
    if (gradient == nullptr) continue;
    d_grad[0] += e1 / grad;
    d_grad[1] += e1 * sample.local_batch / grad;
    const double of_grad = a / (a + b) / grad, of_sync = b / (a + b) / sync;
    d_step[0] += e2 * of_grad;
    d_step[1] += e2 * of_grad * sample.local_batch;
    if (sample.nodes > 1 || sample.replicas > 1) {
      const int at = sample.nodes > 1 ? 2 : 4;
      d_step[at] += e2 * of_sync;
      d_step[at + 1] += e2 * of_sync * more;
    }
    const double weighted = (a * (log_grad - high) + b * (log_sync - high)) / (a + b);
    d_step[6] += e2 * (weighted - std::log(a + b) / g) / g;
  }
  const double n = static_cast<double>(samples.size());
  const double rms_grad = std::sqrt(error_grad / n + smooth * smooth),
               rms_step = std::sqrt(error_step / n + smooth * smooth);
  const double rn = perf.beta_n / perf.alpha_n, rr = perf.beta_r / perf.alpha_r;
  if (gradient != nullptr) {
    for (int i = 0; i < kParams; ++i)
      gradient[i] = (rms_grad > 0 ? d_grad[i] / (n * rms_grad) : 0) +
                    (rms_step > 0 ? d_step[i] / (n * rms_step) : 0);
    gradient[6] += 2e-3 * (perf.gamma - 1);
    gradient[2] -= 2e-2 * rn * rn / perf.alpha_n;
    gradient[3] += 2e-2 * rn / perf.alpha_n;
    gradient[4] -= 2e-2 * rr * rr / perf.alpha_r;
    gradient[5] += 2e-2 * rr / perf.alpha_r;
  }
  return rms_grad + rms_step + 1e-3 * (perf.gamma - 1) * (perf.gamma - 1) +
         1e-2 * (rn * rn + rr * rr);
}

// The search runs over the logarithms of the six coefficients, whose scales differ by millions, and
// over gamma itself. A fixed parameter has lower == upper.
struct Search {
  std::span<const StepSample> samples;
  Vector lower, upper;
  int32_t evaluations = 0;
  // Rounds off the kink of the root mean squares where they vanish: sqrt(mean + smooth^2).
  double smooth = 0;
  double least_gain = 0;  // an iteration that gains less than this is the last

  static Vector to_params(const Vector& x) {
    Vector p;
    for (int i = 0; i < 6; ++i) p[i] = std::exp(x[i]);
    p[6] = x[6];
    return p;
  }

  double value(const Vector& x, Vector& gradient) {
    ++evaluations;
    const Vector p = to_params(x);
    const double f = objective(from_vector(p), samples, smooth, gradient.data());
    for (int i = 0; i < 6; ++i) gradient[i] *= p[i];
    for (int i = 0; i < kParams; ++i)
      if (lower[i] == upper[i]) gradient[i] = 0;
    return f;
  }

  void clip(Vector& x) const {
    for (int i = 0; i < kParams; ++i) x[i] = std::clamp(x[i], lower[i], upper[i]);
  }

  // A variable at its bound whose gradient pushes outward stays there.
  bool held(const Vector& x, const Vector& gradient, int i) const {
    return lower[i] == upper[i] || (x[i] <= lower[i] && gradient[i] > 0) ||
           (x[i] >= upper[i] && gradient[i] < 0);
  }

  double minimise(Vector& x);
  bool step_along(const Vector& direction, double slope, Vector& x, Vector& g, double& f);
};

// A weak Wolfe line search by bisection, from x on; at its end x, its value and its gradient are
// those of the best point. False: there is none below.
bool Search::step_along(const Vector& direction, double slope, Vector& x, Vector& g, double& f) {
  const Vector from = x;
  const double from_f = f;
  // A step in logarithms beyond this says nothing about the neighbourhood.
  double longest = 0;
  for (const double d : direction) longest = std::max(longest, std::abs(d));
  double step = longest > 2 ? 2 / longest : 1, low = 0, high = INFINITY;
  bool found = false;
  for (int trial = 0; trial < 24; ++trial) {
    Vector at = from;
    for (int i = 0; i < kParams; ++i) at[i] += step * direction[i];
    clip(at);
    Vector at_g;
    const double at_f = value(at, at_g);
    if (!(at_f <= from_f + 1e-4 * step * slope)) {
      high = step;
    } else {
      x = at;
      g = at_g;
      f = at_f;
      found = true;
      if (dot(at_g, direction) >= 0.9 * slope) break;
      low = step;
    }
    step = std::isinf(high) ? 2 * low : (low + high) / 2;
    if (longest * step > 8 || longest * step < 1e-12) break;
  }
  return found;
}

// The update of Broyden, Fletcher, Goldfarb and Shanno: s, how x moved; y, how the gradient turned.
// False where they tell nothing.
bool learn_curvature(const Vector& s, const Vector& y, bool fresh,
                     std::array<Vector, kParams>& inverse) {
  const double sy = dot(s, y);
  if (!(sy > 1e-14)) return false;
  Vector hy{};
  for (int i = 0; i < kParams; ++i) hy[i] = dot(inverse[i], y);
  if (fresh) {
    const double scale = sy / dot(y, y);
    for (int i = 0; i < kParams; ++i) {
      inverse[i][i] *= scale;
      hy[i] *= scale;
    }
  }
  const double yhy = dot(y, hy);
  for (int i = 0; i < kParams; ++i)
    for (int j = 0; j < kParams; ++j)
      inverse[i][j] += (1 + yhy / sy) * s[i] * s[j] / sy - (hy[i] * s[j] + s[i] * hy[j]) / sy;
  return true;
}

// BFGS on the free variables, projected on the box, with a weak Wolfe line search by bisection;
// that pair also converges where the root of a vanishing error leaves a kink (Lewis, Overton 2013).
double Search::minimise(Vector& x) {
  constexpr int kIterations = 120;
  constexpr double kTolerance = 1e-7;
  clip(x);
  Vector g;
  double f = value(x, g);
  std::array<Vector, kParams> inverse;
  const auto reset = [&] {
    for (int i = 0; i < kParams; ++i) {
      inverse[i].fill(0);
      inverse[i][i] = 1;
    }
  };
  reset();
  bool fresh = true;
  int stalled = 0;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    Vector direction{};
    double slope = 0, steepest = 0;
    for (int i = 0; i < kParams; ++i) {
      if (held(x, g, i)) continue;
      for (int j = 0; j < kParams; ++j)
        if (!held(x, g, j)) direction[i] -= inverse[i][j] * g[j];
      slope += direction[i] * g[i];
      steepest += g[i] * g[i];
    }
    if (steepest < 1e-20) break;
    if (slope >= -1e-16) {
      if (fresh) break;
      reset();
      fresh = true;
      continue;
    }
    Vector next = x, next_g = g;
    double next_f = f;
    if (!step_along(direction, slope, next, next_g, next_f)) {
      if (fresh) break;
      reset();
      fresh = true;
      continue;
    }
    Vector moved, turned;
    for (int i = 0; i < kParams; ++i) {
      moved[i] = next[i] - x[i];
      turned[i] = next_g[i] - g[i];
    }
    if (learn_curvature(moved, turned, fresh, inverse)) fresh = false;
    const double gained = f - next_f;
    stalled = gained < kTolerance * (std::abs(f) + 1e-4) ? stalled + 1 : 0;
    x = next;
    g = next_g;
    f = next_f;
    if (stalled == 3 || gained < least_gain) break;
  }
  return f;
}

}  // namespace

double fit_objective(const PerfParams& perf, std::span<const StepSample> samples,
                     double* gradient) {
  return objective(perf, samples, 0, gradient);
}

FitResult fit_perf(std::span<const StepSample> samples, double least_gain) {
  if (samples.empty()) fail(ErrorCode::invalid_argument, "no step times to fit");
  bool one_batch = true, several_nodes = false, one_node = false, above_two = false;
  double mean_grad = 0;
  for (const StepSample& sample : samples) {
    if (!(sample.gradient_seconds > 0) || !(sample.step_seconds > 0) ||
        !std::isfinite(sample.gradient_seconds) || !std::isfinite(sample.step_seconds))
      fail(ErrorCode::invalid_argument,
           "a step on {} devices of {} nodes with a local batch of {} took {} s, of it {} s for "
           "gradients; both must be above 0",
           sample.replicas, sample.nodes, sample.local_batch, sample.step_seconds,
           sample.gradient_seconds);
    one_batch &= sample.local_batch == samples.front().local_batch;
    several_nodes |= sample.nodes > 1;
    one_node |= sample.nodes == 1 && sample.replicas > 1;
    above_two |= sample.replicas > 2;
    mean_grad += sample.gradient_seconds;
  }
  mean_grad /= static_cast<double>(samples.size());
  Vector start = {.1, .01, .1, .01, .1, .01, 1.001};
  Vector lower, upper;
  lower.fill(kFloor);
  upper.fill(1e6);
  lower[6] = 1;
  upper[6] = kMostGamma;
  const auto fix = [&](int i, double value) { start[i] = lower[i] = upper[i] = value; };
  if (one_batch) fix(0, std::max(mean_grad / 2, kFloor));
  if (!several_nodes) fix(2, kFloor), fix(3, kFloor);
  if (!one_node) fix(4, kFloor), fix(5, kFloor);
  if (!above_two) fix(3, kFloor), fix(5, kFloor);
  Search search{samples, lower, upper};
  for (int i = 0; i < 6; ++i) {
    start[i] = std::log(start[i]);
    search.lower[i] = std::log(lower[i]);
    search.upper[i] = std::log(upper[i]);
  }
  FitResult result;
  Vector x = start;
  for (const double smooth : {0.02, 2e-4}) {
    search.smooth = smooth;
    search.least_gain = least_gain;
    search.minimise(x);
  }
  result.objective = fit_objective(from_vector(Search::to_params(x)), samples);
  result.evaluations = search.evaluations;
  result.perf = from_vector(Search::to_params(x));
  if (!several_nodes) {
    result.perf.alpha_n = std::max(result.perf.alpha_n, 1.1 * result.perf.alpha_r);
    result.perf.beta_n = std::max(result.perf.beta_n, 1.1 * result.perf.beta_r);
  }
  return result;
}

}  // namespace ductile::sched
