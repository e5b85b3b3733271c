#include "ductile/minima/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/minima/testing/surfaces.h"

namespace ductile::minima {
namespace {

using testing::Quadratic;

Quadratic bowl() {
  Quadratic out(testing::with_eigenvalues({1, 2, 3, 50}, 1), {1, 2, 3, 4}, {1, 2, 3, 4.001});
  out.filter_list = {{0, 2}, {2, 2}};
  return out;
}

TEST(Measure, CountsWhatItComputesAndTellsHowFarItIs) {
  for (const char* slices : {"none", "1d", "2d"}) {
    Quadratic surface = bowl();
    std::vector<double> shares;
    const Measurement got = measure(surface, {.steps = 5, .slices = slices},
                                    [&](double share) { shares.push_back(share); });
    ASSERT_TRUE(got.hessian);
    // One at the place, two boxes of two ascents, and two for each product and the check.
    EXPECT_EQ(got.gradients, 1 + 2 * 2 * 5 + 2 * got.hessian->products + 2);
    EXPECT_EQ(got.losses, slices[0] == '1'   ? kLines * kLinePlaces
                          : slices[0] == '2' ? kPlanePlaces * kPlanePlaces
                                             : 0);
    EXPECT_EQ(shares.size(), static_cast<size_t>(got.losses + got.gradients));
    EXPECT_TRUE(std::ranges::is_sorted(shares));
    EXPECT_LE(shares.back(), 1);
    ASSERT_EQ(got.sharpness.size(), 2u);
    EXPECT_GT(got.sharpness[0].value, got.sharpness[1].value);
    EXPECT_NEAR(got.hessian->largest, 50, 0.05);
    EXPECT_NEAR(got.weight_norm, std::sqrt(30.0), 1e-6);
    EXPECT_GT(got.gradient_norm, 0);
    EXPECT_EQ(got.slices.has_value(), slices[0] != 'n');
  }
}

TEST(Measure, LeavesOutWhatIsNotWanted) {
  Quadratic surface = bowl();
  const Measurement got = measure(surface, {.epsilon = {}, .lanczos = 0, .slices = "none"}, {});
  EXPECT_EQ(got.gradients, 1);
  EXPECT_FALSE(got.hessian);
  EXPECT_TRUE(got.sharpness.empty());
}

TEST(Measure, RefusesAModelWhoseVectorsDoNotFitInMemoryAndSaysHowManyDo) {
  const auto refusal = [](int64_t weights, int64_t lanczos, int64_t available) -> std::string {
    try {
      require_memory(weights, {.lanczos = lanczos}, available);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::unavailable);
      return e.what();
    }
    return "";
  };
  constexpr int64_t kMiB = 1 << 20, kWeights = kMiB / 4;  // a vector takes a MiB
  EXPECT_EQ(refusal(kWeights, 40, 44 * kMiB), "");
  const std::string text = refusal(kWeights, 40, 44 * kMiB - 1);
  EXPECT_NE(text.find("--lanczos 40"), std::string::npos) << text;
  EXPECT_NE(text.find("set --lanczos 39 or less"), std::string::npos) << text;
  EXPECT_EQ(refusal(kWeights, 39, 44 * kMiB - 1), "");
  EXPECT_NE(refusal(kWeights, 40, 3 * kMiB).find("set --lanczos 0"), std::string::npos);
  EXPECT_EQ(refusal(kWeights, 0, 3 * kMiB), "") << "no eigenvalues are wanted";
  EXPECT_EQ(refusal(kWeights, 40, 0), "") << "nobody knows";
  EXPECT_EQ(refusal(10, 300, 14 * 40), "") << "there are no more vectors than weights";
}

TEST(Measure, RefusesAPlaceWhereTheLossIsNotFinite) {
  Quadratic surface({{1}}, {std::numeric_limits<float>::quiet_NaN()}, {0});
  try {
    measure(surface, {}, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict);
  }
}

TEST(Measure, RefusesABoxWithoutSides) {
  Quadratic surface = bowl();
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    try {
      measure(surface, {.epsilon = {bad}}, {});
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    }
  }
}

TEST(Measure, CanBeStopped) {
  Quadratic surface = bowl();
  int count = 0;
  EXPECT_THROW(measure(surface, {},
                       [&](double) {
                         if (++count == 3) fail(ErrorCode::unavailable, "interrupted");
                       }),
               Error);
  EXPECT_EQ(count, 3);
}

TEST(MeasureOptions, TravelAsJson) {
  Options sent, got;
  sent.epsilon = {0.01};
  sent.slices = "2d";
  OptionSet(got).read_json(OptionSet(sent).to_json(), "options");
  EXPECT_EQ(got.epsilon, sent.epsilon);
  EXPECT_EQ(got.slices, "2d");
  EXPECT_THROW(OptionSet(got).read_json({{"slices", "3d"}}, "options"), Error);
  EXPECT_THROW(OptionSet(got).read_json({{"steps", 1}}, "options"), Error);  // it climbs nowhere
}

}  // namespace
}  // namespace ductile::minima
