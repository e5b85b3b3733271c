#include "ductile/optim/elementwise.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>
#include <omp.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::optim {
namespace {

std::vector<float> random_floats(uint64_t seed, size_t n) {
  Rng rng(seed);
  std::vector<float> values(n);
  for (float& v : values) v = rng.normal();
  return values;
}

TEST(GradientNorm, IsThe2Norm) {
  EXPECT_EQ(gradient_norm({}), 0);
  EXPECT_EQ(gradient_norm(std::vector<float>{3, 4}), 5);
  const std::vector<float> x = random_floats(1, 100'001);
  long double squares = 0;
  for (float v : x) squares += static_cast<long double>(v) * v;
  EXPECT_NEAR(gradient_norm(x), std::sqrt(static_cast<double>(squares)), 1e-9);
}

TEST(GradientNorm, DoesNotOverflowOnLargeFiniteGradients) {
  const std::vector<float> x(1000, std::numeric_limits<float>::max());
  EXPECT_NEAR(gradient_norm(x) / (std::sqrt(1000.0) * std::numeric_limits<float>::max()), 1, 1e-12);
}

TEST(GradientNorm, IsNotFiniteExactlyWhenAnElementIsNot) {
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    for (size_t at : {0U, 16383U, 16384U, 49'999U}) {
      std::vector<float> x = random_floats(2, 50'000);
      ASSERT_TRUE(std::isfinite(gradient_norm(x)));
      x[at] = bad;
      EXPECT_FALSE(std::isfinite(gradient_norm(x))) << bad << " at " << at;
    }
  }
}

TEST(GradientNorm, HasTheSameBitsForAnyThreadCountAndAnySharding) {
  const std::vector<float> x = random_floats(3, 16384 * 37 + 5);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const double expected = gradient_norm(x);
  for (int threads : {2, 3, 4}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(gradient_norm(x), expected) << threads;
  }
  omp_set_num_threads(before);
  const std::span<const float> all(x);
  std::vector<double> sums = block_square_sums(all.subspan(0, 16384 * 11));
  const std::vector<double> rest = block_square_sums(all.subspan(16384 * 11));
  sums.insert(sums.end(), rest.begin(), rest.end());
  EXPECT_EQ(norm_of_block_sums(sums), expected);
}

TEST(ClipFactor, IsTorchsAndNeverEnlarges) {
  EXPECT_EQ(clip_factor(10, 0), 1);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(0, 1), 1);
  EXPECT_DOUBLE_EQ(clip_factor(4, 1), 1 / (4 + 1e-6));
}

RC_GTEST_PROP(Elementwise, EqualsThePlainLoop, (uint64_t seed, uint32_t length)) {
  const size_t n = length % 70'000;
  std::vector<float> a = random_floats(seed, n);
  const std::vector<float> b = random_floats(seed + 1, n);
  std::vector<float> expected = a;
  for (size_t i = 0; i < n; ++i) expected[i] = expected[i] + b[i];
  add_into(a, b);
  RC_ASSERT(a == expected);
  std::vector<uint16_t> half(n);
  to_bf16(half, b);
  from_bf16(a, half);
  for (size_t i = 0; i < n; ++i) RC_ASSERT(std::fabs(a[i] - b[i]) <= std::fabs(b[i]) / 256);
  to_f16(half, b);
  from_f16(a, half);
  for (size_t i = 0; i < n; ++i) {
    RC_ASSERT(std::fabs(a[i] - b[i]) <= std::fabs(b[i]) / 2048 + 0x1p-25F);
  }
}

TEST(Elementwise, RefusesBuffersOfUnequalLength) {
  std::vector<float> a(3), b(4);
  EXPECT_THROW(add_into(a, b), Error);
  std::vector<uint16_t> half(3);
  EXPECT_THROW(to_f16(half, b), Error);
}

}  // namespace
}  // namespace ductile::optim
