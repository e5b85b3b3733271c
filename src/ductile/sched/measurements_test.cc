#include "ductile/sched/measurements.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/testing.h"

namespace ductile::sched {
namespace {

using ::ductile::testing::code_of;
using nlohmann::json;

constexpr StepSample kSample{1, 1, 64, 0.1, 0.1};

std::set<std::string> kinds_in(const json& state) {
  std::set<std::string> out;
  for (const json& item : state) out.insert(item.at(0).get<std::string>());
  return out;
}

std::shared_ptr<Measurements> measure(SharedMeasurements& all, const std::string& name) {
  std::shared_ptr<Measurements> out = all.of(name, "cpu");
  out->add(kSample, true);
  all.keep(name, "cpu");
  return out;
}

TEST(SharedMeasurements, TheLeastRecentlyUsedGoExceptWhereSomebodyHoldsThem) {
  constexpr int kMost = static_cast<int>(SharedMeasurements::kMostKinds);
  SharedMeasurements all;
  const std::shared_ptr<Measurements> held = measure(all, "held");
  for (int i = 0; i < kMost - 1; ++i) measure(all, std::to_string(i));
  EXPECT_EQ(all.forgotten(), 0u);
  measure(all, "0");  // used again
  measure(all, "new");
  EXPECT_EQ(all.forgotten(), 1u);
  EXPECT_EQ(all.find("1", "cpu"), nullptr);
  for (const char* name : {"held", "0", "2", "new"}) EXPECT_NE(all.find(name, "cpu"), nullptr);
  EXPECT_EQ(all.newest(2), (std::vector<std::string>{"0", "new"}));
  EXPECT_EQ(all.newest(10'000).size(), SharedMeasurements::kMostKinds);
}

// Formerly each name of a command took the place of a kind that was measured.
TEST(SharedMeasurements, OfWhatNothingWasMeasuredNothingIsKept) {
  SharedMeasurements all;
  measure(all, "kind");
  std::vector<std::shared_ptr<Measurements>> held;
  for (size_t i = 0; i < 3 * SharedMeasurements::kMostKinds; ++i)
    held.push_back(all.of(std::to_string(i), "cpu"));
  EXPECT_EQ(kinds_in(all.state()), std::set<std::string>{"kind"});
  EXPECT_NE(all.find("kind", "cpu"), nullptr);
  EXPECT_EQ(all.find("0", "cpu"), nullptr);
  EXPECT_EQ(all.of("0", "cpu"), held[0]);
  held[0]->add(kSample, true);
  all.keep("0", "cpu");
  EXPECT_EQ(all.find("0", "cpu"), held[0].get());
  all.keep("never asked for", "cpu");
  EXPECT_EQ(kinds_in(all.state()), (std::set<std::string>{"0", "kind"}));
}

TEST(SharedMeasurements, WhatIsHeldBeyondTheirNumberGoesOnceItIsReleased) {
  constexpr size_t kMost = SharedMeasurements::kMostKinds;
  SharedMeasurements all;
  std::vector<std::shared_ptr<Measurements>> held;
  for (size_t i = 0; i < 2 * kMost; ++i) held.push_back(measure(all, std::to_string(i)));
  EXPECT_EQ(all.forgotten(), 0u);
  EXPECT_EQ(all.state().size(), 2 * kMost);
  held.clear();
  for (size_t i = 0; i < kMost; ++i) all.of(std::to_string(i) + " waits", "cpu");
  EXPECT_EQ(all.state().size(), kMost);
}

// Also of a state that has more of them, as an older program saved it.
TEST(SharedMeasurements, WhichWereUsedLastIsKnownAfterARestart) {
  SharedMeasurements before;
  for (const char* name : {"c", "a", "b", "d", "a"}) measure(before, name);
  const json state = before.state();
  SharedMeasurements after;
  after.restore(state, "state");
  EXPECT_EQ(after.newest(2), (std::vector<std::string>{"a", "d"}));
  EXPECT_EQ(after.state(), state);
  json many = json::array();
  for (size_t i = 0; i < SharedMeasurements::kMostKinds + 7; ++i) {
    many.push_back(state.at(0));
    many.back().at(0) = std::to_string(i);
  }
  after.restore(many, "state");
  const std::set<std::string> kinds = kinds_in(after.state());
  EXPECT_EQ(kinds.size(), SharedMeasurements::kMostKinds);
  EXPECT_FALSE(kinds.contains("6"));
  EXPECT_TRUE(kinds.contains("7"));
  EXPECT_FALSE(kinds.contains("a"));
  const json empty = Measurements().state();
  after.restore({{"kind", "cpu", state.at(0).at(2)}, {"command", "cpu", empty}}, "state");
  EXPECT_EQ(kinds_in(after.state()), std::set<std::string>{"kind"});
}

// Formerly whoever asked for the speed of what had samples and no shapes ended the process.
TEST(Measurements, AStateWithoutShapesGetsThemAndOneThatContradictsItselfIsRefused) {
  Measurements measured;
  measured.add(kSample, true);
  FitCache fits;
  measured.refresh(fits, true);
  json state = measured.state();
  state.erase("shapes");
  Measurements restored = Measurements::from_state(state, "state");
  restored.refresh(fits, true);
  ASSERT_NE(restored.steps(), nullptr);
  EXPECT_NEAR(restored.steps()->step_seconds(1, 1, 64), 0.1, 1e-6);
  json zero = state;
  zero["perf"] = {0, 0, 0, 0, 0, 0, 1};
  state.erase("perf");
  for (const json& bad : {state, zero})
    EXPECT_EQ(code_of([&] { Measurements::from_state(bad, "state"); }), ErrorCode::data_loss)
        << bad;
}

}  // namespace
}  // namespace ductile::sched
