#include "ductile/minima/lanczos.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/minima/testing/surfaces.h"
#include "ductile/minima/vectors.h"

namespace ductile::minima {
namespace {

using testing::Quadratic;
using testing::with_eigenvalues;

Quadratic quadratic(const std::vector<double>& eigenvalues, uint64_t seed) {
  const size_t n = eigenvalues.size();
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = 0.1f * static_cast<float>(i % 7) - 0.3f;
  return {with_eigenvalues(eigenvalues, seed), x, std::vector<double>(n, 0.05)};
}

TEST(HessianProduct, IsThatOfTheMatrix) {
  const testing::Matrix h = with_eigenvalues({0.5, 3, 40, -2}, 5);
  Quadratic surface(h, {1, -2, 0.5, 3}, {0, 0, 0, 0});
  const std::vector<float> v = random_direction(4, 2, 0);
  std::vector<float> got(4);
  hessian_product(surface, v, product_step(norm(surface.weights())), got);
  for (size_t i = 0; i < 4; ++i) {
    double want = 0;
    for (size_t j = 0; j < 4; ++j) want += h[i][j] * v[j];
    EXPECT_NEAR(got[i], want, 0.01);
  }
}

TEST(Lanczos, FindsBothEndsOfTheSpectrumOfAQuadratic) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    std::vector<double> values;
    for (int i = 0; i < 60; ++i) values.push_back(0.02 * i);
    values.insert(values.end(), {12, 31, 75, -4});
    Quadratic surface = quadratic(values, seed);
    const Spectrum got = hessian_spectrum(surface, {.max_products = 40, .seed = seed});
    EXPECT_TRUE(got.converged);
    EXPECT_LT(got.products, 40);
    EXPECT_NEAR(got.largest, 75, 1e-3 * 75);
    EXPECT_NEAR(got.check, 75, 1e-3 * 75);
    EXPECT_LE(got.residual, 1e-3 * 75);
    EXPECT_LE(got.check_residual, 1e-2 * 75);
    EXPECT_GE(got.smallest, -4 - 1e-2);
  }
}

TEST(Lanczos, OfAllDimensionsFindsTheWholeSpectrum) {
  Quadratic surface = quadratic({-7, -1, 0, 2, 2, 9}, 3);
  const Spectrum got = hessian_spectrum(surface, {.max_products = 40, .tolerance = 0});
  EXPECT_EQ(got.products, 6);
  EXPECT_NEAR(got.largest, 9, 9e-3);
  EXPECT_NEAR(got.smallest, -7, 9e-3);
}

TEST(Lanczos, SaysThatItDidNotConverge) {
  std::vector<double> values;  // no eigenvalue stands out
  for (int i = 0; i < 200; ++i) values.push_back(1 + 0.001 * i);
  Quadratic surface = quadratic(values, 1);
  const Spectrum got = hessian_spectrum(surface, {.max_products = 4, .tolerance = 1e-4});
  EXPECT_FALSE(got.converged);
  EXPECT_EQ(got.products, 4);
  EXPECT_GT(got.residual, 1e-4 * got.largest);
  EXPECT_LT(got.largest, 1.199 + 1e-3);
}

TEST(Lanczos, OfAFlatLossIsZero) {
  Quadratic surface = quadratic({0, 0, 0}, 1);
  const Spectrum got = hessian_spectrum(surface, {});
  EXPECT_EQ(got.largest, 0);
  EXPECT_EQ(got.smallest, 0);
  EXPECT_TRUE(got.converged);
}

TEST(Lanczos, HasTheSameBitsAgainAndOthersFromAnotherStart) {
  Quadratic surface = quadratic({1, 2, 3, 4, 5, 6, 7, 8}, 1);
  const auto run = [&](uint64_t seed) {
    return hessian_spectrum(surface, {.max_products = 3, .seed = seed}).largest;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

// A mean of many |w - kink|, as ReLUs make them: the second derivative is 0 almost everywhere, and
// on the scale of many kinks the loss is a parabola.
class Kinks : public Surface {
 public:
  static constexpr double kBetween = 3e-4;
  static constexpr int kCount = 201;
  std::span<const float> weights() const override { return place_; }
  std::span<const Filter> filters() const override { return {}; }
  double loss(std::span<const float> at) override {
    std::vector<float> slope(1);
    return gradient(at, slope);
  }
  double gradient(std::span<const float> at, std::span<float> out) override {
    double sum = 0, slope = 0;
    for (int i = 0; i < kCount; ++i) {
      const double off = static_cast<double>(at[0]) - 1 - kBetween * (i - kCount / 2 + 0.3);
      sum += std::abs(off);
      slope += off > 0 ? 1 : -1;
    }
    out[0] = static_cast<float>(slope / kCount);
    return sum / kCount;
  }

 private:
  std::vector<float> place_ = {1};
};

TEST(Lanczos, SeesTheCurvatureThatManySmallKinksMake) {
  Kinks surface;
  const Spectrum got = hessian_spectrum(surface, {});
  const double want = 2 / (Kinks::kCount * Kinks::kBetween);
  EXPECT_NEAR(got.largest, want, 0.1 * want);
  EXPECT_NEAR(got.check, want, 0.2 * want);
}

class Broken : public Quadratic {
 public:
  using Quadratic::Quadratic;
  double gradient(std::span<const float> at, std::span<float> out) override {
    const double loss = Quadratic::gradient(at, out);
    out[0] = std::numeric_limits<float>::infinity();
    return loss;
  }
};

TEST(Lanczos, RefusesGradientsThatAreNotFinite) {
  Broken surface({{1}}, {1}, {0});
  try {
    hessian_spectrum(surface, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict);
  }
}

}  // namespace
}  // namespace ductile::minima
