#include "ductile/noise/noise_scale.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::noise {
namespace {

TEST(NoiseScale, EfficiencyIsThatOfTheNoiseScale) {
  const GradientNoise noise = {.5, 4};
  const double phi = 128 * noise.var / noise.sqr;
  for (const double batch : {128.0, 256.0, 2048.0})
    EXPECT_NEAR(efficiency(noise, batch / 128), (phi + 128) / (phi + batch), 1e-12);
  EXPECT_EQ(gain({0, 0}, 4), 1);
  EXPECT_EQ(square_root_factor(9), 3);
  EXPECT_LE(adascale_factor(noise, 4), 4);
  EXPECT_GE(adascale_factor(noise, 4), 1);
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
    // Two steps of one micro-batch, in place of it.
    pairs.add({.parts = 2,
               .scale = 2,
               .mean_square_norm = (norm(a) + norm(b)) / 2,
               .square_norm_mean = norm(half),
               .steps = 0.5});
  }
  const double sqr = kDims * mean * mean, var = kDims * sigma * sigma;
  for (const NoiseEstimator* e : {&many, &pairs}) {
    EXPECT_NEAR(e->noise()->sqr / sqr, 1, 0.1);
    EXPECT_NEAR(e->noise()->var / var, 1, 0.05);
    EXPECT_NEAR(*e->noise_scale(128) / (128 * var / sqr), 1, 0.15);
  }
}

TEST(NoiseScale, IsTheUnbiasedEstimateOfOneStep) {
  NoiseEstimator e;
  EXPECT_FALSE(e.noise());
  e.add({4, 4, 10, 4});
  EXPECT_NEAR(e.noise()->sqr, (4 * 4 - 10) / 3.0, 1e-9);
  EXPECT_NEAR(e.noise()->var, (10 - 4) * 4 / 3.0, 1e-9);
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
  NoiseEstimator g;  // all gradients are 0
  g.add({2, 2, 0, 0});
  EXPECT_EQ(g.noise()->var, 0);
  EXPECT_TRUE(std::isinf(*g.noise_scale(8)));
  EXPECT_EQ(gain(*g.noise(), 4), 1);
}

// A loss that is a mean instead of a sum, or is scaled for fp16, has gradients of another size.
TEST(NoiseScale, DoesNotDependOnTheUnitOfTheLoss) {
  Rng rng(7);
  NoiseEstimator one, small;
  for (int i = 0; i < 50; ++i) {
    const double whole = rng.uniform(0.5, 1), local = whole + rng.uniform(0, 0.1);
    one.add({2, 4, local, whole});
    small.add({2, 4, 1e-12 * local, 1e-12 * whole});
  }
  EXPECT_NEAR(*small.noise_scale(8) / *one.noise_scale(8), 1, 1e-9);
}

}  // namespace
}  // namespace ductile::noise
