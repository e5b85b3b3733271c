#include <algorithm>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/cluster/pause_meter_impl.h"

namespace ductile::cluster {
namespace {

// A job that is looked at every `look` seconds, whose processes change once.
struct ResizeCase {
  double asked = 10, look = 0.2, step = 0.5;
  double begin = 10;  // from when on the job stands still
  double pause = 4;
  int64_t before = 20;  // steps done by then
  bool starts = false;  // nothing ran before

  double seen() const {
    PauseMeter meter;
    std::optional<double> out;
    if (!starts) meter.see(0, {1, 0, 0});
    bool told = false;
    for (int i = 0; i < 1000 && !out; ++i) {
      const double now = i * look;
      if (!told && now >= asked) {
        meter.begin(now);
        told = true;
      }
      const auto done =
          static_cast<int64_t>(std::min(now, begin) / begin * static_cast<double>(before));
      const double goes_on = begin + pause;
      if (now < goes_on)
        out = meter.see(now, starts ? Reached{1, 0, before} : Reached{1, 0, done});
      else
        out = meter.see(now, {2, before, before + static_cast<int64_t>((now - goes_on) / step)});
      EXPECT_TRUE(told || !out);
    }
    EXPECT_FALSE(meter.measures());
    return out.value_or(-1);
  }
};

TEST(PauseMeter, SeesTheTimeFromARequestToTheFirstStepOfAStart) {
  ResizeCase start;
  start.starts = true;
  EXPECT_NEAR(start.seen(), 4, 0.5);
}

TEST(PauseMeter, AJobThatGoesOnMeanwhileLosesOnlyTheHandingOver) {
  ResizeCase change;
  change.asked = 2;  // and until 10 the processes before go on
  EXPECT_NEAR(change.seen(), 4, 0.7);
}

TEST(PauseMeter, LongStepsAreNoPause) {
  Rng rng(7, 0);
  for (int i = 0; i < 200; ++i) {
    ResizeCase change;
    change.starts = rng.below(2) == 0;
    change.step = rng.uniform(0.01, 8);
    change.pause = rng.uniform(0.5, 30);
    EXPECT_NEAR(change.seen(), change.pause, 0.75) << change.step;
  }
}

TEST(PauseMeter, ProcessesThatAServiceTakesOverDoNotPause) {
  PauseMeter meter;
  meter.begin(0);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(meter.see(i, {3, 100, 120 + i}));
  EXPECT_TRUE(meter.measures());
  meter.begin(50);  // and now they change
  EXPECT_FALSE(meter.see(51, {3, 100, 170}));
  EXPECT_FALSE(meter.see(58, {4, 171, 172}));
  EXPECT_DOUBLE_EQ(meter.see(59, {4, 171, 173}).value(), 58 - 51 - 1);
}

TEST(PauseMeter, AStartThatIsFasterThanALookIsSeen) {
  PauseMeter meter;
  meter.begin(0);
  meter.formed();
  EXPECT_FALSE(meter.see(0.2, {1, 0, 1}));
  EXPECT_NEAR(meter.see(0.3, {1, 0, 2}).value(), 0.1, 1e-9);
}

TEST(PauseMeter, AChangeThatChangesNothingIsGivenUp) {
  PauseMeter meter;
  meter.see(0, {1, 0, 5});
  meter.begin(1);
  int64_t step = 5;
  double now = 1;
  for (; meter.measures() && now < 10000; ++now) EXPECT_FALSE(meter.see(now, {1, 0, ++step}));
  EXPECT_NEAR(now, PauseMeter::kLongest, 5);
}

TEST(PauseMeter, AFurtherChangeBeginsAnew) {
  PauseMeter meter;
  meter.see(0, {1, 0, 5});
  meter.begin(1);
  EXPECT_FALSE(meter.see(4, {2, 5, 6}));
  meter.begin(4.5);  // before a second step was seen
  EXPECT_FALSE(meter.see(9, {3, 6, 7}));
  EXPECT_DOUBLE_EQ(meter.see(10, {3, 6, 8}).value(), 9 - 1 - 1);
}

}  // namespace
}  // namespace ductile::cluster
