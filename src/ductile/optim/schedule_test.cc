#include "ductile/optim/schedule.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/spec/schedules.h"

namespace ductile::optim {
namespace {

const std::vector<std::string> kNames = spec::schedules().names();

spec::ScheduleOptions from_json(const nlohmann::json& json) {
  spec::ScheduleOptions o;
  o.name = json.at("name");
  o.warmup_epochs = json.value("warmup_epochs", o.warmup_epochs);
  o.warmup_start = json.value("warmup_start", o.warmup_start);
  o.final_fraction = json.value("final_fraction", o.final_fraction);
  o.step.milestones = json.value("milestones", o.step.milestones);
  o.step.gamma = json.value("gamma", o.step.gamma);
  o.polynomial.power = json.value("power", o.polynomial.power);
  o.one_cycle.peak_at = json.value("peak_at", o.one_cycle.peak_at);
  return o;
}

TEST(Schedule, EqualsTorchsSchedulersAtEveryStep) {
  const auto golden = nlohmann::json::parse(
      read_file(DUCTILE_SOURCE_DIR "/src/ductile/optim/testdata/schedules.json"));
  for (const auto& item : golden.at("cases")) {
    const spec::ScheduleOptions options = from_json(item.at("options"));
    const auto rates = item.at("rates").get<std::vector<double>>();
    const double peak = item.at("peak");
    for (size_t step = 0; step < rates.size(); ++step) {
      EXPECT_NEAR(learning_rate(options, peak, static_cast<double>(step), item.at("total_steps"),
                                item.at("steps_per_epoch")),
                  rates[step], 1e-9 * peak)
          << item.at("options") << " step " << step;
    }
  }
}

rc::Gen<spec::ScheduleOptions> any_schedule() {
  return rc::gen::exec([] {
    spec::ScheduleOptions o;
    o.name = *rc::gen::elementOf(kNames);
    o.warmup_epochs = *rc::gen::inRange(0, 80) / 8.0;
    o.warmup_start = *rc::gen::inRange(0, 9) / 8.0;
    o.final_fraction = *rc::gen::inRange(0, 9) / 8.0;
    o.step.milestones = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(1, 12));
    o.polynomial.power = *rc::gen::inRange(1, 33) / 8.0;
    o.one_cycle.peak_at = *rc::gen::inRange(0, 9) / 8.0;
    o.knee.explore_epochs = *rc::gen::inRange(0, 40) / 8.0;
    o.knee.explore_share = *rc::gen::inRange(0, 9) / 8.0;
    o.trapezoid.decay = *rc::gen::inRange(0, 9) / 8.0;
    o.trapezoid.shape = *rc::gen::element<std::string>("linear", "sqrt");
    return o;
  });
}

RC_GTEST_PROP(Schedule, StaysBetweenZeroAndThePeakForEveryRunLength, ()) {
  const spec::ScheduleOptions o = *any_schedule();
  const int64_t total = *rc::gen::inRange<int64_t>(1, 60);
  const int64_t per_epoch = *rc::gen::inRange<int64_t>(1, 12);
  for (int64_t step = 0; step < total + 3; ++step) {
    for (const double part : {0.0, 0.3}) {  // of a step, where the batch has changed
      const double lr = learning_rate(o, 0.7, static_cast<double>(step) + part,
                                      static_cast<double>(total) + part, per_epoch);
      RC_ASSERT(lr >= 0.0);
      RC_ASSERT(lr <= 0.7 * (1 + 1e-12));
    }
  }
}

// No step moves more than the steepest part of any of the shapes allows; step schedules excepted.
RC_GTEST_PROP(Schedule, IsContinuousAtItsJoints, ()) {
  spec::ScheduleOptions o = *any_schedule();
  RC_PRE(o.name != "step");
  o.polynomial.power = std::max(o.polynomial.power, 1.0);
  const int64_t per_epoch = 1000;
  const int64_t total = 20'000;
  o.warmup_epochs = *rc::gen::elementOf(std::vector<double>{0, 1, 7.5, 15});
  o.one_cycle.peak_at = *rc::gen::elementOf(std::vector<double>{0.25, 0.5, 0.75});
  o.trapezoid.shape = "linear";  // 1 - sqrt(q) begins steeply
  o.trapezoid.decay = std::max(o.trapezoid.decay, 0.1);
  for (int64_t step = 1; step < total; ++step) {
    const auto at = static_cast<double>(step);
    const double before = learning_rate(o, 1.0, at - 1, total, per_epoch);
    const double now = learning_rate(o, 1.0, at, total, per_epoch);
    RC_ASSERT(std::fabs(now - before) < 5.0 / 1000);
  }
}

TEST(Schedule, WarmUpEndsAtThePeakAndMayBeTheWholeRun) {
  for (const std::string& name : kNames) {
    spec::ScheduleOptions o{.name = name, .warmup_epochs = 2, .step = {.milestones = {50}}};
    EXPECT_DOUBLE_EQ(learning_rate(o, 0.5, 20, 100, 10), 0.5) << name;
    EXPECT_EQ(learning_rate(o, 0.5, 0, 100, 10), 0) << name;
    o.warmup_epochs = 10;
    EXPECT_LT(learning_rate(o, 0.5, 50, 100, 10), 0.5) << name;
    EXPECT_GT(learning_rate(o, 0.5, 50, 100, 10), 0.0) << name;
    o.warmup_epochs = 1000;
    EXPECT_GT(learning_rate(o, 0.5, 99, 100, 10), 0.4) << name;
  }
}

TEST(Schedule, ARunOfOneStepTrainsAtThePeakWithoutWarmUp) {
  for (const std::string& name : kNames) {
    const spec::ScheduleOptions o{.name = name, .step = {.milestones = {1}}};
    EXPECT_DOUBLE_EQ(learning_rate(o, 0.5, 0, 1, 1), 0.5) << name;
  }
}

// The authors count steps from 1: their step g has the rate of our step g.
RC_GTEST_PROP(Schedule, KneeIsTheAuthorsFormula, ()) {
  const int64_t per_epoch = 10;
  const int64_t warmup = 10 * *rc::gen::inRange<int64_t>(0, 4);
  const int64_t explore = 10 * *rc::gen::inRange<int64_t>(1, 7);
  const int64_t total = warmup + explore + *rc::gen::inRange<int64_t>(0, 60);
  spec::ScheduleOptions o{.name = "knee"};
  o.warmup_epochs = static_cast<double>(warmup) / 10;
  o.knee.explore_epochs = static_cast<double>(explore) / 10;
  const auto W = static_cast<double>(warmup), E = static_cast<double>(explore);
  const double D = static_cast<double>(total) - W - E;
  for (int64_t step = 1; step < total; ++step) {
    const auto g = static_cast<double>(step);
    double rate = 0.4;
    if (g <= W) {
      rate = 0.4 * g / W;
    } else if (g > W + E) {
      rate = std::max(0.0, 0.4 * (1 - (g - W - E) / D));
    }
    RC_ASSERT(std::fabs(learning_rate(o, 0.4, step, total, per_epoch) - rate) < 1e-12);
  }
}

TEST(Schedule, KneeSplitsTheBudgetByItselfAndMayHaveNothingLeftToFall) {
  spec::ScheduleOptions o{.name = "knee"};
  EXPECT_EQ(learning_rate(o, 0.5, 50, 100, 10), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(o, 0.5, 75, 100, 10), 0.25);
  o.knee.explore_share = 0.8;
  EXPECT_DOUBLE_EQ(learning_rate(o, 0.5, 90, 100, 10), 0.25);
  o.knee.explore_epochs = 1000;  // D = 0
  o.warmup_epochs = 1;
  EXPECT_EQ(learning_rate(o, 0.5, 99, 100, 10), 0.5);
  EXPECT_EQ(learning_rate(o, 0.5, 100, 100, 10), 0);
}

TEST(Schedule, TrapezoidFallsInTheLastPartOfTheRun) {
  spec::ScheduleOptions o{.name = "trapezoid", .warmup_epochs = 1, .final_fraction = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(o, 1, 5, 100, 10), 0.5);
  EXPECT_EQ(learning_rate(o, 1, 80, 100, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1, 85, 100, 10), 1 - 0.9 * 0.25);
  o.trapezoid.shape = "sqrt";
  EXPECT_DOUBLE_EQ(learning_rate(o, 1, 85, 100, 10), 1 - 0.9 * 0.5);
  o.trapezoid.decay = 1;  // the warm-up comes first
  EXPECT_DOUBLE_EQ(learning_rate(o, 1, 5, 100, 10), 0.5);
  EXPECT_EQ(learning_rate(o, 1, 10, 100, 10), 1);
}

TEST(Schedule, StaysAtTheFinalValueAfterTheEnd) {
  for (const char* name : {"cosine", "linear", "polynomial", "one_cycle", "knee", "trapezoid"}) {
    const spec::ScheduleOptions o{.name = name, .final_fraction = 0.25};
    EXPECT_DOUBLE_EQ(learning_rate(o, 0.8, 100, 100, 10), 0.2) << name;
    EXPECT_DOUBLE_EQ(learning_rate(o, 0.8, 1'000'000, 100, 10), 0.2) << name;
  }
}

TEST(Schedule, RefusesUnknownNamesAndEmptyRuns) {
  EXPECT_THROW(learning_rate({.name = "cosinus"}, 1, 0, 10, 1), Error);
  EXPECT_THROW(learning_rate({}, 1, 0, 0, 1), Error);
  EXPECT_THROW(learning_rate({}, 1, -1, 10, 1), Error);
}

}  // namespace
}  // namespace ductile::optim
