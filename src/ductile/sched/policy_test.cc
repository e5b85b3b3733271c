#include "ductile/sched/policy.h"

#include <functional>

#include <gtest/gtest.h>

#include "ductile/sched/policies_impl.h"

namespace ductile::sched {
namespace {

struct WithTraits : Policy {
  explicit WithTraits(const PolicyTraits& what) : what(what) {}
  PolicyTraits what;
  std::string_view name() const override { return "with traits"; }
  PolicyTraits traits() const override { return what; }
  std::string explain(JobId) const override { return ""; }
  Decisions decide(const Round&) override { return {}; }
};

// Traits that differ from the default ones in one field each.
std::vector<std::pair<const char*, PolicyTraits>> each_trait() {
  return {
      {"uses", {.uses = Scaling::strong}},        {"measures", {.measures = true}},
      {"on_events", {.on_events = true}},         {"serves", {.serves = true}},
      {"keeps_fixed", {.keeps_fixed = true}},     {"sees_regions", {.sees_regions = true}},
      {"sees_types", {.sees_types = false}},      {"scales_pipelines", {.scales_pipelines = true}},
      {"fit_least_gain", {.fit_least_gain = 0.5}}};
}

TEST(ReserveFixed, KeepsEveryTraitOfThePolicyThatItWraps) {
  for (auto [name, traits] : each_trait()) {
    const auto wrapped = reserve_fixed(std::make_unique<WithTraits>(traits));
    traits.keeps_fixed = true;  // what the wrapper is for
    EXPECT_EQ(wrapped->traits(), traits) << name;
  }
}

TEST(MakePolicy, NoPolicyChangesWhatMayNotBePreempted) {
  for (const std::string& name : policy_names())
    EXPECT_TRUE(make_policy(name)->traits().keeps_fixed) << name;
}

}  // namespace
}  // namespace ductile::sched
