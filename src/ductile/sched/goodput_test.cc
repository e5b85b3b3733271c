#include "ductile/sched/goodput.h"

#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/sched/hetero.h"
#include "ductile/sched/noise_scale.h"

namespace ductile::sched {
namespace {

const PerfParams kPerf = {.05, .004, .12, .004, .03, .001, 2};
const BatchLimits kLimits = {128, 4096, 16, 512};

TEST(Goodput, StepTimeFollowsTheFormula) {
  const double grad = .05 + .004 * 64;
  EXPECT_NEAR(step_seconds(kPerf, 1, 1, 64, 0), grad, 1e-6);
  EXPECT_NEAR(step_seconds(kPerf, 1, 4, 64, 0),
              std::sqrt(grad * grad + (.03 + .002) * (.03 + .002)), 1e-12);
  EXPECT_NEAR(step_seconds(kPerf, 2, 8, 64, 3),
              3 * grad + std::sqrt(grad * grad + (.12 + .024) * (.12 + .024)), 1e-12);
}

TEST(Goodput, EfficiencyIsThatOfTheNoiseScale) {
  const GradientNoise noise = {.5, 4};
  const double phi = 128 * noise.var / noise.sqr;
  for (const double batch : {128.0, 256.0, 2048.0})
    EXPECT_NEAR(efficiency(noise, batch / 128), (phi + 128) / (phi + batch), 1e-12);
  EXPECT_EQ(gain({0, 0}, 4), 1);
  EXPECT_EQ(square_root_factor(9), 3);
  EXPECT_LE(adascale_factor(noise, 4), 4);
  EXPECT_GE(adascale_factor(noise, 4), 1);
}

// Every candidate, one by one, as the definition has it.
BatchChoice slow_best(const GradientNoise& noise, int nodes, int replicas) {
  BatchChoice best;
  const double low = std::max(128.0, 16.0 * replicas);
  for (int i = 0; i < 50; ++i) {
    const double batch = low * std::pow(4096 / low, i / 49.0), local = batch / replicas;
    int s = static_cast<int>(std::ceil(local / 512 - 1e-8)) - 1;
    if (replicas == 1 && local > 128 + 1e-8) s = std::max(s, 1);
    const int m = static_cast<int>(std::ceil(local / (s + 1) - 1e-8));
    if (m < 16 || m > 512) continue;
    const double value = goodput(kPerf, noise, kLimits, nodes, replicas, m, s);
    if (value > best.goodput) best = {value, m, s};
  }
  return best;
}

RC_GTEST_PROP(Goodput, BestBatchIsTheBestOfAll, ()) {
  const int replicas = *rc::gen::inRange(1, 65), nodes = (replicas + 3) / 4;
  const GradientNoise noise = {*rc::gen::inRange(1, 100) / 50.0, *rc::gen::inRange(1, 1000) / 50.0};
  const BatchChoice fast = best_batch(kPerf, noise, kLimits, nodes, replicas),
                    slow = slow_best(noise, nodes, replicas);
  RC_ASSERT(std::abs(fast.goodput - slow.goodput) <= 1e-9 * slow.goodput);
  RC_ASSERT(fast.local_batch == slow.local_batch);
  RC_ASSERT(fast.accumulation == slow.accumulation);
}

RC_GTEST_PROP(Goodput, SplitKeepsTheBatch, ()) {
  const int replicas = *rc::gen::inRange(1, 33), batch = *rc::gen::inRange(128, 4097);
  const BatchChoice split = split_batch(kLimits, replicas, batch);
  const int whole = replicas * split.local_batch * (split.accumulation + 1);
  RC_ASSERT(split.local_batch <= 512);
  RC_ASSERT(whole <= 4096);
  RC_ASSERT(whole + replicas * (split.accumulation + 1) >= batch);
  if (replicas == 1 && batch > 128) RC_ASSERT(split.accumulation >= 1);
}

// Gradients g = mean + noise: the estimators must find |mean|^2 and the variance at batch M0.
TEST(NoiseScale, BothEstimatorsFindTheTruth) {
  constexpr int kDims = 200, kSteps = 8000;
  const double mean = 0.1, sigma = 0.5;  // per coordinate, of one micro-batch of M0 samples
  NoiseEstimator many, pairs;
  Rng rng(7);
  const auto draw = [&](std::vector<double>& g) {
    for (double& v : g) v = mean + sigma * rng.normal();
  };
  const auto norm = [](const std::vector<double>& g) {
    double sum = 0;
    for (const double v : g) sum += v * v;
    return sum;
  };
  std::vector<double> a(kDims), b(kDims), half(kDims);
  for (int step = 0; step < kSteps; ++step) {
    draw(a);
    draw(b);
    for (int i = 0; i < kDims; ++i) half[i] = (a[i] + b[i]) / 2;
    // Two micro-batches of M0 each: a whole batch of 2 M0.
    many.add({2, 2, (norm(a) + norm(b)) / 2, norm(half)});
    pairs.add_pair(1, norm(a), norm(b), norm(half));
  }
  const double sqr = kDims * mean * mean, var = kDims * sigma * sigma;
  for (const NoiseEstimator* e : {&many, &pairs}) {
    EXPECT_NEAR(e->noise()->sqr / sqr, 1, 0.1);
    EXPECT_NEAR(e->noise()->var / var, 1, 0.05);
    EXPECT_NEAR(*e->noise_scale(128) / (128 * var / sqr), 1, 0.15);
  }
}

TEST(NoiseScale, UnbiasedDataReplaceDifferences) {
  NoiseEstimator e;
  EXPECT_FALSE(e.noise());
  e.add_pair(1, 4, 4, 3);
  EXPECT_FALSE(e.unbiased());
  e.add({4, 4, 10, 4});
  EXPECT_TRUE(e.unbiased());
  EXPECT_NEAR(e.noise()->sqr, (4 * 4 - 10) / 3.0, 1e-9);
  EXPECT_NEAR(e.noise()->var, (10 - 4) * 4 / 3.0, 1e-9);
  e.add_pair(1, 400, 400, 1);  // no longer heard
  EXPECT_NEAR(e.noise()->sqr, 2, 1e-9);
  EXPECT_THROW(e.add({1, 1, 1, 1}), Error);
}

// A sample that stands for several steps counts as much as so many samples.
TEST(NoiseScale, ASampleMayStandForSeveralSteps) {
  NoiseEstimator each, some;
  for (const NoiseSample& s : {NoiseSample{4, 4, 10, 4}, NoiseSample{4, 4, 20, 5}}) {
    for (int i = 0; i < 3; ++i) each.add(s);
    NoiseSample of_three = s;
    of_three.steps = 3;
    some.add(of_three);
  }
  EXPECT_NEAR(some.noise()->sqr / each.noise()->sqr, 1, 1e-12);
  EXPECT_NEAR(some.noise()->var / each.noise()->var, 1, 1e-12);
}

TEST(NoiseScale, NeverNegative) {
  NoiseEstimator e;
  e.add({2, 2, 10, 1});
  EXPECT_EQ(e.noise()->sqr, 0);
  EXPECT_TRUE(std::isinf(*e.noise_scale(8)));
  NoiseEstimator f;
  f.add({2, 2, 1, 1});
  EXPECT_NEAR(f.noise()->var, 1e-6, 1e-12);
}

TEST(Heterogeneous, EstimatesComeFromWhatIsKnown) {
  JobView job;
  job.types.resize(2);
  for (TypeModel& type : job.types) type.limits = kLimits;
  job.types[0].unit_rate = 100;
  job.types[1].unit_rate = 300;
  const int32_t per_node[] = {4, 8};
  // Nothing fitted: perfect scaling of the start-up profile.
  EXPECT_EQ(estimated_goodput(job, 1, 1, 4, per_node), 1200);
  job.noise = GradientNoise{1, 8};
  job.types[0].fitted = true;
  job.types[0].perf = kPerf;
  EXPECT_EQ(estimated_goodput(job, 0, 2, 8, per_node),
            best_batch(kPerf, *job.noise, kLimits, 2, 8).goodput);
  // The other type: the same curve, as much faster as one device is.
  EXPECT_NEAR(estimated_goodput(job, 1, 1, 8, per_node),
              3 * best_batch(kPerf, *job.noise, kLimits, 2, 8).goodput, 1e-9);
  EXPECT_EQ(reference_type(job, 1), 0);
  job.types[1].allowed = false;
  EXPECT_EQ(estimated_goodput(job, 1, 1, 8, per_node), 0);
}

}  // namespace
}  // namespace ductile::sched
