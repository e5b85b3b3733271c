#include "ductile/base/rng.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

namespace ductile {
namespace {

// Known answers published with Random123 (philox4x32-10).
TEST(Philox, MatchesTheKnownAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, EqualStreamsAgreeAndOthersDiffer) {
  Rng a(1, 2, 3), b(1, 2, 3);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(a.next(), b.next());
  std::set<uint64_t> firsts;
  for (uint64_t s = 0; s < 1000; ++s) firsts.insert(Rng(1, 2, s).next64());
  EXPECT_EQ(firsts.size(), 1000u);
}

TEST(Rng, BelowIsUniformAndNormalHasUnitVariance) {
  Rng rng(7);
  std::array<int, 6> seen{};
  for (int i = 0; i < 60000; ++i) ++seen[rng.below(6)];
  for (int n : seen) EXPECT_NEAR(n, 10000, 500);
  double sum = 0, squares = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = rng.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 1e5, 0, 0.02);
  EXPECT_NEAR(squares / 1e5, 1, 0.02);
}

}  // namespace
}  // namespace ductile
