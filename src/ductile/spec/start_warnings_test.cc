#include "ductile/spec/start_warnings.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/spec/optimizers.h"

namespace ductile::spec {
namespace {

using Lines = std::vector<std::string>;

Lines warnings_of(const Lines& assignments) {
  JobOptions job;
  OptionSet options(job);
  for (const std::string& assignment : assignments) options.set(assignment);
  return start_warnings(job, options);
}

TEST(RuleTraits, EveryRuleHasARowAndAdamsRulesBeginSmall) {
  for (const Named& row : optimizers()) {
    const RuleTraits* rule = rule_traits(row.name);
    ASSERT_NE(rule, nullptr) << row.name << " has no row in rule_traits.cc";
    EXPECT_GT(rule->start_lr, 0) << row.name;
    if (!rule->adam) continue;
    EXPECT_LE(rule->start_lr, JobOptions().optimizer.lr / 10) << row.name;
  }
  EXPECT_EQ(rule_traits("python"), nullptr);
}

TEST(StartWarnings, TheDefaultRateIsNamedForRulesThatNeedASmallOne) {
  EXPECT_EQ(warnings_of({"optimizer.name=adamw"}),
            Lines{"optimizer.lr = 0.1 is the default, which is meant for sgd and far too large for "
                  "optimizer.name = \"adamw\"; begin with optimizer.lr = 0.001"});
  for (const char* rule : {"adam", "nadamw", "ademamix", "lamb"})
    EXPECT_EQ(warnings_of({std::string("optimizer.name=") + rule}).size(), 1U) << rule;
  for (const char* rule : {"sgd", "muon", "neumann", "nlcg", "python"})
    EXPECT_EQ(warnings_of({std::string("optimizer.name=") + rule}), Lines{}) << rule;
}

TEST(StartWarnings, TheDefaultRateIsTooSmallForTheTrustRatioOfLars) {
  EXPECT_EQ(warnings_of({"optimizer.name=lars"}),
            Lines{"optimizer.lr = 0.1 is the default, which is meant for sgd and far too small for "
                  "optimizer.name = \"lars\" with optimizer.lars.trust_coefficient = 0.001; begin "
                  "with optimizer.lr = 10"});
  EXPECT_EQ(warnings_of({"optimizer.name=lars", "optimizer.lars.trust_coefficient=0.01"}).size(),
            1U);
  for (const char* enough : {"optimizer.lr=0.1", "optimizer.lars.trust_coefficient=0.1",
                             "optimizer.lars.trust_clip=true", "train.rate_control=lrtuner"})
    EXPECT_EQ(warnings_of({"optimizer.name=lars", enough}), Lines{}) << enough;
}

TEST(StartWarnings, ARateThatIsGivenOrFoundIsNotSpokenOf) {
  EXPECT_EQ(warnings_of({"optimizer.name=adamw", "optimizer.lr=0.1"}), Lines{});
  EXPECT_EQ(warnings_of({"optimizer.name=adamw", "train.rate_control=lrtuner"}), Lines{});
  EXPECT_EQ(warnings_of({"optimizer.name=adamw", "tune.online=true"}), Lines{});
  EXPECT_EQ(warnings_of({"optimizer.name=adamw", "tune.online=true", "tune.lr=[]"}).size(), 1U);
  EXPECT_EQ(warnings_of({"optimizer.name=adamw", "train.rate_control=noise"}).size(), 1U);
}

// Whatever chooses the rate. Runs that an earlier version accepted go on, so it is no error.
TEST(StartWarnings, AMomentumOfOneTrainsNoMatrixOfMuon) {
  for (const char* control : {"schedule", "lrtuner"}) {
    const Lines job = {"optimizer.name=muon", std::string("train.rate_control=") + control};
    Lines one = job;
    one.emplace_back("optimizer.momentum=1");
    EXPECT_EQ(warnings_of(job), Lines{}) << control;
    EXPECT_EQ(warnings_of(one),
              Lines{"optimizer.momentum = 1 takes nothing of a gradient, so optimizer.name = "
                    "\"muon\" trains no matrix; choose a value below 1, for example 0.95"})
        << control;
  }
}

TEST(StartWarnings, AWarmUpThatARuleNeedsIsAskedFor) {
  const Lines job = {"optimizer.name=schedule_free", "optimizer.lr=0.0025"};
  EXPECT_EQ(warnings_of(job),
            Lines{"optimizer.name = \"schedule_free\" needs a warm-up, and schedule.warmup_epochs "
                  "= 0; begin with schedule.warmup_epochs = 0.2, 2 % of train.epochs"});
  for (const char* rise :
       {"schedule.warmup_epochs=0.2", "schedule.name=one_cycle", "train.rate_control=lrtuner"}) {
    Lines more = job;
    more.emplace_back(rise);
    EXPECT_EQ(warnings_of(more), Lines{}) << rise;
  }
  EXPECT_EQ(warnings_of({"optimizer.name=schedule_free"}).size(), 2U);
}

TEST(StartWarnings, OptionsThatChangeTheLossByWhichTheyWouldBeJudgedAreNamed) {
  const auto warned = [](const char* method, const char* range, bool online = true) {
    JobOptions job;
    job.train.method = method;
    job.tune.online = online;
    job.tune.options = {range};
    return start_warnings(job, OptionSet(job));
  };
  const Lines lines = warned("selective", "train.selective.beta:0:3");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("train.selective.beta changes what that loss is"), std::string::npos)
      << lines[0];
  EXPECT_EQ(warned("plain", "train.label_smoothing:0:0.2").size(), 1U);
  EXPECT_EQ(warned("graded", "train.graded.unbias:0:1").size(), 1U);
  EXPECT_EQ(warned("graded", "train.graded.unbias:0:1", false), Lines{}) << "nobody reads it";
  EXPECT_EQ(warned("graded", "train.graded.floor:0.1:1"), Lines{});
  EXPECT_EQ(warned("infobatch", "train.infobatch.ratio:0:0.9"), Lines{});
}

}  // namespace
}  // namespace ductile::spec
