#include "ductile/tune/progress.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace ductile::tune {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<Observation> clocks(const std::vector<double>& values, double from = 0,
                                double step = 1) {
  std::vector<Observation> out;
  for (const double v : values) {
    from += step;
    out.push_back({from, v});
  }
  return out;
}

TEST(ProgressTest, AgreesWithCasesWorkedByHand) {
  struct Case {
    const char* what;
    double start;
    std::vector<double> values;
    Verdict verdict;
    double gain, noise, slope;  // slope NaN: none
  };
  const Case cases[] = {
      {"falls by one a clock",
       10,
       {9, 8, 7, 6, 5, 4, 3, 2, 1, 0.5},
       Verdict::converging,
       -9.5,
       0,
       -0.95},
      // Twenty clocks are ten blocks of two: 9.5, 9, ..., 5 with a rise of 0.5 in the middle.
      {"blocks of two",
       10,
       {9, 10, 8, 10, 8, 9, 7, 9, 7, 8, 8, 8, 6, 8, 6, 7, 5, 7, 5, 5},
       Verdict::converging,
       -5,
       0.5,
       -4.5 / 20},
      {"rises by more than a tenth of the gain",
       10,
       {9, 8, 7, 8, 6, 5, 4, 3, 2, 1},
       Verdict::unstable,
       -9,
       1,
       -0.8},
      {"rises by exactly a tenth",
       10,
       {9, 8, 7, 8, 6, 5, 4, 3, 2, 0},
       Verdict::converging,
       -10,
       1,
       -0.9},
      {"noise eats the gain",
       10,
       {12, 9, 11, 9, 10, 9, 9, 9, 9, 9},
       Verdict::unstable,
       -1,
       2,
       kNan},
      {"flat", 10, {10, 10, 10}, Verdict::unstable, 0, 0, 0},
      {"rises", 1, {2, 3, 4}, Verdict::unstable, 3, 1, kNan},
      {"ten times as high is not yet diverged", 1, {10}, Verdict::unstable, 9, 9, kNan},
      {"above ten times is", 1, {10.5}, Verdict::diverged, 9.5, 9.5, kNan},
      {"not a number", 1, {0.5, kNan, 0.1}, Verdict::diverged, 0, 0, kNan},
      {"infinite", 1, {0.5, -kInf}, Verdict::diverged, 0, 0, kNan},
      {"nothing yet", 1, {}, Verdict::unstable, 0, 0, kNan},
      {"what is left over belongs to the last block: 21 clocks",
       21,
       {20, 20, 18, 18, 16, 16, 14, 14, 12, 12, 10, 10, 8, 8, 6, 6, 4, 4, 3, 3, 0},
       Verdict::converging,
       -19,
       0,
       -19.0 / 21},
      {"a measure below 0", -0.1, {-0.2, -0.4, -0.7}, Verdict::converging, -0.6, 0, -0.2},
  };
  for (const Case& c : cases) {
    const Progress p = progress_of({0, c.start}, clocks(c.values));
    EXPECT_EQ(p.verdict, c.verdict) << c.what;
    EXPECT_NEAR(p.gain, c.gain, 1e-12) << c.what;
    EXPECT_NEAR(p.noise, c.noise, 1e-12) << c.what;
    EXPECT_EQ(p.slope.has_value(), !std::isnan(c.slope)) << c.what;
    if (p.slope) {
      EXPECT_NEAR(*p.slope, c.slope, 1e-12) << c.what;
    }
  }
  EXPECT_EQ(progress_of({0, kNan}, clocks({1, 2})).verdict, Verdict::diverged);
}

TEST(ProgressTest, TimeCountsFromTheStart) {
  const Progress p = progress_of({100, 10}, clocks({8, 6}, 100, 2));
  EXPECT_DOUBLE_EQ(*p.slope, -1);
}

TEST(ProgressTest, ASearchHasSettledWhenTheBestFiveAreWithinATenth) {
  EXPECT_FALSE(has_settled(std::vector<double>{-1, -1, -1, -1}));
  EXPECT_TRUE(has_settled(std::vector<double>{-1, -0.95, -0.91, -0.93, -0.94, -0.1}));
  EXPECT_FALSE(has_settled(std::vector<double>{-1, -0.95, -0.89, -0.93, -0.94}));
  EXPECT_FALSE(has_settled(std::vector<double>{-2, -1, -1, -1, -1, -1}));
  EXPECT_FALSE(has_settled(std::vector<double>{0, 0, 0, 0, 0}));
}

TEST(ProgressTest, TiesAreNoNewBest) {
  EXPECT_EQ(values_without_best(std::vector<double>{}), 0);
  EXPECT_EQ(values_without_best(std::vector<double>{3, 2, 1}), 0);
  EXPECT_EQ(values_without_best(std::vector<double>{3, 1, 1, 2, 1}), 3);
  EXPECT_EQ(values_without_best(std::vector<double>{3, 1, kNan, 2}), 2);
  EXPECT_EQ(values_without_best(std::vector<double>{kNan}), 1);
}

}  // namespace
}  // namespace ductile::tune
