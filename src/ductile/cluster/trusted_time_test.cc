#include <gtest/gtest.h>

#include "ductile/cluster/trusted_time_impl.h"

namespace ductile::cluster {
namespace {

constexpr double kDay = TrustedTime::kDay, kBegin = 1e9;

TEST(TrustedTime, AClockThatGoesOnIsBelieved) {
  TrustedTime time(kBegin);
  for (double passed = 0; passed < 200 * kDay; passed += kDay / 3)
    EXPECT_EQ(time.now(kBegin + passed, passed), kBegin + passed);
}

TEST(TrustedTime, AClockThatLeapsIsBelievedOnceItHasGoneOnForADay) {
  TrustedTime time(kBegin);
  const double leap = kBegin + 100 * kDay;
  EXPECT_EQ(time.now(leap, 5), std::nullopt);
  EXPECT_EQ(time.now(leap + kDay / 2, 5 + kDay / 2), std::nullopt);
  EXPECT_EQ(time.known(), kBegin) << "so that the next service doubts it, too";
  EXPECT_EQ(time.now(leap + kDay, 5 + kDay), leap + kDay);
  EXPECT_EQ(time.now(leap + kDay + 60, 65 + kDay), leap + kDay + 60);
  EXPECT_EQ(time.known(), leap + kDay + 60);
}

TEST(TrustedTime, AnotherLeapBeginsAnotherDayOfDoubt) {
  TrustedTime time(kBegin);
  EXPECT_EQ(time.now(kBegin + 100 * kDay, 0), std::nullopt);
  EXPECT_EQ(time.now(kBegin + 300 * kDay, 0.9 * kDay), std::nullopt);
  EXPECT_EQ(time.now(kBegin + 300 * kDay + 60, 1.5 * kDay), std::nullopt);
  EXPECT_TRUE(time.now(kBegin + 301 * kDay, 1.9 * kDay));
}

TEST(TrustedTime, AClockThatIsSetRightIsBelievedAtOnce) {
  TrustedTime time(kBegin);
  EXPECT_EQ(time.now(kBegin + 100 * kDay, 0), std::nullopt);
  EXPECT_EQ(time.now(kBegin + 120, 120), kBegin + 120);
  EXPECT_EQ(time.now(kBegin + 100 * kDay, 180), std::nullopt);
  EXPECT_EQ(time.now(0, 240), 0.0) << "set back, it lets nothing grow old";
  EXPECT_EQ(time.known(), kBegin + 120);
}

}  // namespace
}  // namespace ductile::cluster
