#include "ductile/sched/shadow_cost.h"

#include <cmath>

#include <gtest/gtest.h>

namespace ductile::sched {
namespace {

// k -> k^p, finely cut.
std::vector<CurvePoint> power_curve(double p, int most) {
  std::vector<CurvePoint> points;
  for (int k = 1; k <= most; ++k) points.push_back({static_cast<double>(k), std::pow(k, p)});
  return points;
}

TEST(ShadowCost, OfOneMachineCountsTheJobsAJobDelays) {
  // Rate 1 on one device and no more: work of the i-th largest job delays i jobs, itself included.
  const std::vector<CurvePoint> points{{1, 1}};
  std::vector<SizedJob> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back({i, 10.0 - i, 1, 0, 1});
  const std::vector<double> worth = shadow_costs(jobs, points, 1, 5);
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(worth[static_cast<size_t>(i)], i + 1, 0.1 * (i + 1));
}

TEST(ShadowCost, OfEqualPowerLawsIsThatOfHeSRPT) {
  // heSRPT gives the i-th largest of m jobs the share (i/m)^(1/(1-p)) - ((i-1)/m)^(1/(1-p)); with
  // weights w that share maximises sum w_i share_i^p, so w_i share_i^(p-1) is the same for all.
  const double p = 0.5;
  const int n = 4;
  const std::vector<CurvePoint> points = power_curve(p, 4000);
  std::vector<SizedJob> jobs;
  for (int i = 0; i < n; ++i) jobs.push_back({i, 100.0 - i, 1, 0, static_cast<int>(points.size())});
  const std::vector<double> worth = shadow_costs(jobs, points, 4000, n);
  std::vector<double> level;
  for (int i = 1; i <= n; ++i) {
    const double share = std::pow(i / double(n), 2) - std::pow((i - 1) / double(n), 2);
    level.push_back(worth[static_cast<size_t>(i - 1)] * std::pow(share, p - 1));
  }
  for (double l : level) EXPECT_NEAR(l, level[0], 0.03 * level[0]);
}

TEST(ShadowCost, PartsOfAJobWeighAsTheirMean) {
  const std::vector<CurvePoint> points = power_curve(0.7, 64);
  const int n = static_cast<int>(points.size());
  const std::vector<double> sure = shadow_costs({{0, 5, 1, 0, n}, {1, 9, 1, 0, n}}, points, 64, 2);
  EXPECT_GT(sure[0], sure[1]);
  const std::vector<double> unsure =
      shadow_costs({{0, 1, 0.5, 0, n}, {0, 100, 0.5, 0, n}, {1, 9, 1, 0, n}}, points, 64, 2);
  EXPECT_LT(unsure[0], sure[0]);
  EXPECT_GT(unsure[0], 0);
}

TEST(ShadowCost, OfEqualJobsTheFirstIsToEndFirst) {
  const std::vector<CurvePoint> points{{1, 1}};
  for (const double standing : {0.0, 1.0}) {
    std::vector<SizedJob> jobs;
    for (int i = 0; i < 6; ++i)
      for (const double size : {10.0, 100.0}) jobs.push_back({i, size, 0.5, 0, 1});
    const std::vector<double> worth = shadow_costs(jobs, points, 2, 6, standing);
    for (size_t i = 1; i < 6; ++i) EXPECT_GE(worth[i - 1], worth[i]) << i << ", " << standing;
    EXPECT_GT(worth[0], worth[5]);
  }
}

// Jobs to come do not make the largest one that is here worth more than smaller ones.
TEST(ShadowCost, JobsToComeCountForAllThatAreHere) {
  const std::vector<CurvePoint> points{{1, 1}};
  std::vector<SizedJob> jobs;
  for (int i = 0; i < 2; ++i)
    for (int part = 0; part < 8; ++part)
      jobs.push_back({i, 1000.0 * (part + 1) + 6 * i, 1 / 8.0, 0, 1});
  const std::vector<double> worth = shadow_costs(jobs, points, 1, 2, 1);
  EXPECT_GT(worth[0], worth[1]) << "the second one is larger";
}

TEST(ShadowCost, OfNothingIsNothing) {
  EXPECT_TRUE(shadow_costs({}, {}, 64, 0).empty());
  EXPECT_EQ(shadow_costs({{0, 1, 1, 0, 0}}, {}, 64, 1)[0], 0);
}

TEST(KeepConcave, LeavesRisingCornersWithFallingSlopes) {
  std::vector<CurvePoint> points{{4, 3.9}, {1, 1}, {2, 1.1}, {8, 3.5}, {16, 6}, {0, 5}};
  keep_concave(points);
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[0].cost, 1);
  EXPECT_EQ(points[1].cost, 4);
  EXPECT_EQ(points[2].cost, 16);
}

}  // namespace
}  // namespace ductile::sched
