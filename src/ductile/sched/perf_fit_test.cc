#include "ductile/sched/perf_fit.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::sched {
namespace {

const PerfParams kFitted = {.05, .004, .12, .004, .03, .001, 2};

std::vector<StepSample> samples_of(const PerfParams& perf, int count, double noise, uint64_t seed) {
  Rng rng(seed);
  std::vector<StepSample> out;
  for (int i = 0; i < count; ++i) {
    StepSample s;
    s.nodes = 1 + static_cast<int>(rng.below(4));
    s.replicas = s.nodes == 1 ? 1 + static_cast<int>(rng.below(4))
                              : s.nodes * (1 + static_cast<int>(rng.below(4)));
    s.local_batch = 8 << rng.below(5);
    const double grad = gradient_seconds(perf, s.local_batch);
    s.gradient_seconds = grad * std::exp(noise * rng.normal());
    s.step_seconds =
        step_seconds(perf, s.nodes, s.replicas, s.local_batch, 0) * std::exp(noise * rng.normal());
    out.push_back(s);
  }
  return out;
}

// The slow reference: coordinate search over logarithms from many starts, with no gradient.
double slow_minimum(std::span<const StepSample> samples) {
  bool one_batch = true, several = false, one = false, above_two = false;
  double mean = 0;
  for (const StepSample& s : samples) {
    one_batch &= s.local_batch == samples[0].local_batch;
    several |= s.nodes > 1;
    one |= s.nodes == 1 && s.replicas > 1;
    above_two |= s.replicas > 2;
    mean += s.gradient_seconds / static_cast<double>(samples.size());
  }
  double best = INFINITY;
  for (uint64_t start = 0; start < 6; ++start) {
    Rng rng(99, start);
    double x[7] = {std::log(.1), std::log(.01), std::log(.1), std::log(.01),
                   std::log(.1), std::log(.01), 1.5};
    if (start > 0)
      for (int i = 0; i < 6; ++i) x[i] += rng.normal() * 2;
    bool fixed[7] = {};
    const auto fix = [&](int i, double v) {
      x[i] = std::log(v);
      fixed[i] = true;
    };
    if (one_batch) fix(0, mean / 2);
    if (!several) fix(2, 1e-8), fix(3, 1e-8);
    if (!one) fix(4, 1e-8), fix(5, 1e-8);
    if (!above_two) fix(3, 1e-8), fix(5, 1e-8);
    const auto value = [&] {
      return fit_objective({std::exp(x[0]), std::exp(x[1]), std::exp(x[2]), std::exp(x[3]),
                            std::exp(x[4]), std::exp(x[5]), x[6]},
                           samples);
    };
    double f = value();
    for (double step = 1; step > 1e-5; step /= 1.6)
      for (int sweep = 0; sweep < 12; ++sweep)
        for (int i = 0; i < 7; ++i) {
          if (fixed[i]) continue;
          for (const double way : {step, -step}) {
            const double before = x[i];
            x[i] = i == 6 ? std::clamp(x[i] + way, 1.0, 10.0)
                          : std::clamp(x[i] + way, std::log(1e-8), 10.0);
            const double now = value();
            if (now < f) {
              f = now;
            } else {
              x[i] = before;
            }
          }
        }
    best = std::min(best, f);
  }
  return best;
}

TEST(PerfFit, ReachesTheOptimumOfASlowReference) {
  for (const int count : {1, 2, 3, 6, 15, 40})
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const auto samples = samples_of(kFitted, count, 0.05, seed * 100 + count);
      const FitResult fit = fit_perf(samples);
      EXPECT_LE(fit.objective, slow_minimum(samples) * 1.01 + 2e-3) << count << " seed " << seed;
      EXPECT_LT(fit.evaluations, 4000);
    }
}

TEST(PerfFit, PredictsWhatItHasSeen) {
  const auto samples = samples_of(kFitted, 30, 0, 3);
  const PerfParams perf = fit_perf(samples).perf;
  for (const StepSample& s : samples)
    EXPECT_NEAR(step_seconds(perf, s.nodes, s.replicas, s.local_batch, 0) / s.step_seconds, 1,
                0.05);
}

TEST(PerfFit, GradientEqualsDifferences) {
  const auto samples = samples_of(kFitted, 12, 0.2, 5);
  double p[7] = {.07, .003, .2, .01, .02, .002, 1.7}, gradient[7];
  const auto at = [&](const double* v) {
    return PerfParams{v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
  };
  fit_objective(at(p), samples, gradient);
  for (int i = 0; i < 7; ++i) {
    const double h = 1e-6 * p[i], keep = p[i];
    p[i] = keep + h;
    const double up = fit_objective(at(p), samples);
    p[i] = keep - h;
    const double down = fit_objective(at(p), samples);
    p[i] = keep;
    EXPECT_NEAR(gradient[i], (up - down) / (2 * h), 1e-5 * (1 + std::abs(gradient[i]))) << i;
  }
}

TEST(PerfFit, IsOptimisticAboutWhatWasNotSeen) {
  StepSample one{1, 1, 64, 0.3, 0.3};
  const PerfParams perf = fit_perf(std::span(&one, 1)).perf;
  EXPECT_NEAR(perf.alpha_c, 0.15, 1e-9);
  EXPECT_NEAR(gradient_seconds(perf, 64), 0.3, 0.01);
  // Devices not tried cost nothing to add: throughput grows as they do.
  EXPECT_NEAR(step_seconds(perf, 4, 16, 64, 0), 0.3, 0.01);
  const auto single = samples_of({.05, .004, .12, .004, .03, .001, 2}, 1, 0, 1);
  StepSample node{1, 4, 32, 0.2, 0.25};
  const PerfParams raised = fit_perf(std::span(&node, 1)).perf;
  EXPECT_GE(raised.alpha_n, 1.1 * raised.alpha_r * (1 - 1e-9));
}

TEST(PerfFit, RefusesTimesThatCannotBe) {
  StepSample bad{1, 1, 64, 0, 0.3};
  EXPECT_THROW(fit_perf(std::span(&bad, 1)), Error);
  EXPECT_THROW(fit_perf({}), Error);
}

RC_GTEST_PROP(PerfFit, StaysWithinItsBounds, ()) {
  const int count = *rc::gen::inRange(1, 20);
  const auto samples = samples_of(kFitted, count, 0.5, *rc::gen::arbitrary<uint64_t>());
  const PerfParams p = fit_perf(samples).perf;
  for (const double v : {p.alpha_c, p.beta_c, p.alpha_n, p.beta_n, p.alpha_r, p.beta_r}) {
    RC_ASSERT(std::isfinite(v));
    RC_ASSERT(v >= 0.99e-8);
  }
  RC_ASSERT(p.gamma >= 1 && p.gamma <= 10);
}

}  // namespace
}  // namespace ductile::sched
