#include "ductile/data/sampler.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"

namespace ductile::data {
namespace {

std::vector<int64_t> all(const Permutation& p) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < p.size(); ++i) order.push_back(p[i]);
  return order;
}

RC_GTEST_PROP(Permutation, VisitsEverySampleOnce, (uint64_t seed, uint64_t epoch)) {
  const int64_t size = *rc::gen::inRange<int64_t>(1, 3000);
  std::vector<int64_t> order = all(Permutation(seed, epoch, size));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < size; ++i) RC_ASSERT(order[static_cast<size_t>(i)] == i);
}

RC_GTEST_PROP(Permutation, StaysInRangeForLargeSets, (uint64_t seed)) {
  const int64_t size = *rc::gen::inRange<int64_t>(1, int64_t{1} << 40);
  const Permutation p(seed, 0, size);
  std::set<int64_t> seen;
  const int64_t count = std::min<int64_t>(size, 200);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = p[size - 1 - i];
    RC_ASSERT(at >= 0 && at < size);
    RC_ASSERT(seen.insert(at).second);
  }
}

TEST(Permutation, DependsOnSeedAndEpoch) {
  const auto order = all(Permutation(1, 0, 1000));
  EXPECT_EQ(order, all(Permutation(1, 0, 1000)));
  EXPECT_NE(order, all(Permutation(2, 0, 1000)));
  EXPECT_NE(order, all(Permutation(1, 1, 1000)));
}

TEST(Permutation, SpreadsEverySampleOverAllPositions) {
  // Over many epochs each (position, sample) pair should be equally likely: chi-squared over a
  // 50 x 50 table, 2401 degrees of freedom, standard deviation 69.
  constexpr int64_t kSize = 50, kEpochs = 5000;
  std::vector<double> count(kSize * kSize);
  for (int64_t e = 0; e < kEpochs; ++e) {
    const Permutation p(7, static_cast<uint64_t>(e), kSize);
    for (int64_t i = 0; i < kSize; ++i) ++count[static_cast<size_t>(i * kSize + p[i])];
  }
  const double expected = double(kEpochs) / kSize;
  double chi = 0;
  for (const double c : count) chi += (c - expected) * (c - expected) / expected;
  EXPECT_NEAR(chi, 2401, 5 * 69);
}

TEST(Permutation, LeavesNoTraceOfNeighbourhood) {
  // Steps between consecutive positions of a random order: mean |difference| is size / 3.
  const int64_t size = 50000;
  const auto order = all(Permutation(3, 4, size));
  double sum = 0;
  for (size_t i = 1; i < order.size(); ++i) sum += std::abs(double(order[i] - order[i - 1]));
  EXPECT_NEAR(sum / double(size) / double(size), 1.0 / 3, 0.01);
}

TEST(Permutation, RefusesAnEmptySet) { EXPECT_THROW(Permutation(1, 1, 0), Error); }

}  // namespace
}  // namespace ductile::data
