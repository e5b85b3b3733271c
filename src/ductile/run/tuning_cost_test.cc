#include "ductile/run/tuning_cost.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"

namespace ductile::run {
namespace {

using nlohmann::json;
using Trial = TuningRecord::Trial;

json started(int64_t trial) { return {{"what", "started"}, {"trial", trial}}; }
json ran(int64_t trial) { return {{"what", "ran"}, {"trial", trial}}; }
json chosen(int64_t trial) { return {{"what", "chosen"}, {"trial", trial}}; }

// An event of the tuner, after `samples` samples, at these readings of the run's clock and of the
// CPU time of its workers.
json tune(int64_t step, double samples, double seconds, double core_seconds, const json& moves) {
  const bool is_over = moves.back().at("what") == "chosen";
  return {{"kind", "tune"},     {"what", is_over ? "search_over" : "trial"},
          {"step", step},       {"samples", samples},
          {"seconds", seconds}, {"core_seconds", core_seconds},
          {"moves", moves}};
}

json resume(int64_t step, double seconds, double core_seconds) {
  return {{"kind", "resume"}, {"step", step}, {"seconds", seconds}, {"core_seconds", core_seconds}};
}

json end(int64_t step, double samples, double seconds, double core_seconds) {
  return {{"kind", "end"},
          {"step", step},
          {"samples", samples},
          {"seconds", seconds},
          {"cost", {{"wall_seconds", seconds}, {"core_seconds", core_seconds}}}};
}

void expect_cost(const TrialCost& cost, double samples, double seconds, double core_seconds) {
  EXPECT_DOUBLE_EQ(cost.samples, samples);
  EXPECT_DOUBLE_EQ(cost.wall_seconds, seconds);
  EXPECT_DOUBLE_EQ(cost.core_seconds, core_seconds);
}

// Trial 0 takes 10 s for 100 samples, trial 1 takes 20 s for 200; then the run trains for 70 s.
std::vector<json> one_search() {
  return {{{"kind", "start"}, {"step", 0}, {"seconds", 0}, {"core_seconds", 1}},
          tune(0, 0, 1, 2, json::array({started(0)})),
          tune(10, 100, 11, 22, json::array({ran(0), started(1)})),
          tune(30, 300, 31, 62, json::array({ran(1), chosen(1)})),
          end(100, 1000, 101, 202)};
}

TEST(TuningCost, IsWhatPassedBetweenTheEventsOfTrials) {
  const std::vector<json> events = one_search();
  const TuningRecord record = read_tuning(events);
  ASSERT_EQ(record.costs.size(), 2U);
  expect_cost(record.costs.at({1, 0}), 100, 10, 20);
  expect_cost(record.costs.at({1, 1}), 200, 20, 40);
  expect_cost(cost_of_trials(record), 300, 30, 60);
  EXPECT_EQ(record.kept, (std::set<Trial>{{1, 1}}));
  expect_cost(cost_of_kept_trials(record), 200, 20, 40);
  const json told = tuning_json(events);
  EXPECT_EQ(told.at("searches"), 1);
  EXPECT_EQ(told.at("trials"), 2);
  EXPECT_EQ(told.at("samples"), 300.0);
  EXPECT_EQ(told.at("samples_kept"), 200.0);
  EXPECT_EQ(told.at("wall_seconds"), 30.0);
  EXPECT_EQ(told.at("core_seconds"), 60.0);
  EXPECT_TRUE(told.at("kept").is_null()) << "the job's own setting";
  EXPECT_TRUE(tuning_json({}).is_null());
  EXPECT_TRUE(tuning_json({end(5, 50, 5, 5)}).is_null());
}

// The run goes back twice: to step 40, after its only search, and to step 25, in the trial that it
// kept. It says no step in an earlier version, or one that makes no sense.
TEST(TuningCost, DropsWhatTheRunWentBackFrom) {
  using Steps = std::vector<std::pair<double, double>>;
  const auto back = [](int64_t at, const json& to) {
    const json move = {{"what", "went_back"}, {"step", to}, {"setting", nullptr}};
    return tune(at, 10.0 * static_cast<double>(at), 150, 300, json::array({move, started(0)}));
  };
  std::vector<json> events = one_search();
  events.push_back(back(100, 40));
  EXPECT_EQ(read_tuning(events).dropped, (Steps{{0, 10}, {40, 100}}));
  EXPECT_TRUE(read_tuning(events).is_dropped(100));
  EXPECT_FALSE(read_tuning(events).is_dropped(40));
  events.push_back(tune(110, 1100, 160, 320, json::array({ran(0), started(1)})));
  events.push_back(tune(120, 1200, 170, 340, json::array({ran(1), chosen(1)})));
  EXPECT_EQ(read_tuning(events).dropped, (Steps{{0, 10}, {40, 100}, {100, 110}}));
  events.push_back(back(130, 25));
  EXPECT_EQ(read_tuning(events).dropped, (Steps{{0, 10}, {25, 130}}));
  for (const json& to : {json(), json("x"), json(1e300)}) {
    events.back() = back(130, to);
    EXPECT_EQ(read_tuning(events).dropped, (Steps{{0, 10}, {40, 100}, {100, 110}}));
  }
}

TEST(TuningCost, TellsWhatTheLastSearchKept) {
  std::vector<json> events = one_search();
  json move = chosen(1);
  move["setting"] = {{"lr", 0.0621}};
  events.insert(events.end() - 1, tune(40, 400, 41, 82, json::array({move})));
  EXPECT_EQ(tuning_json(events).at("kept"), (json{{"lr", 0.0621}}));
  move = {{"what", "went_back"}, {"setting", {{"lr", 0.0621}}}};
  events.insert(events.end() - 1, tune(50, 500, 51, 102, json::array({move})));
  EXPECT_TRUE(tuning_json(events).at("kept").is_null());
}

// Killed at 25 s in trial 1, of which the checkpoint had nothing, and again when the search was
// over: each time the run does again what it told before.
TEST(TuningCost, CountsSamplesOnceAndTimeAsOftenAsItPassed) {
  const std::vector<json> whole = one_search();
  std::vector<json> events(whole.begin(), whole.begin() + 3);
  events.push_back(resume(5, 26, 50));  // it was killed in trial 1; this is trial 0
  events.push_back(tune(10, 100, 32, 61, json::array({ran(0), started(1)})));
  events.push_back(tune(30, 300, 52, 101, json::array({ran(1), chosen(1)})));
  events.push_back(resume(20, 60, 110));  // from 52 to 60 s the search was over
  events.push_back(tune(30, 300, 70, 130, json::array({ran(1), chosen(1)})));
  events.push_back(end(100, 1000, 140, 270));
  const TuningRecord record = read_tuning(events);
  EXPECT_EQ(record.entries.size(), 3U) << "of the state there is each step once";
  ASSERT_EQ(record.costs.size(), 2U) << "all of it is one search";
  expect_cost(record.costs.at({1, 0}), 100, 10 + 6, 20 + 11);
  expect_cost(record.costs.at({1, 1}), 200, 15 + 20 + 10, 28 + 40 + 20);
  EXPECT_EQ(record.kept, (std::set<Trial>{{1, 1}}));
}

TEST(TuningCost, LeavesPausesOut) {
  std::vector<json> events = one_search();
  events.resize(3);
  events.push_back(end(20, 200, 21, 42));  // preempted in trial 1
  expect_cost(cost_of_trials(read_tuning(events)), 200, 20, 40);
  events.push_back(resume(20, 27, 55));  // until the workers were there
  events.push_back(tune(30, 300, 37, 75, json::array({ran(1), chosen(1)})));
  expect_cost(cost_of_trials(read_tuning(events)), 300, 30, 60);
}

TEST(TuningCost, CountsSearchesAndWhatATrialUnderWayHasToldSoFar) {
  std::vector<json> events = one_search();
  events.pop_back();
  events.push_back(tune(50, 500, 51, 102, json::array({started(0)})));
  events.push_back(tune(60, 600, 61, 122, json::array({ran(0), started(1)})));
  const TuningRecord record = read_tuning(events);
  ASSERT_EQ(record.costs.size(), 4U);
  expect_cost(record.costs.at({2, 0}), 100, 10, 20);
  expect_cost(record.costs.at({2, 1}), 0, 0, 0);
  expect_cost(cost_of_trials(record), 400, 40, 80);
  EXPECT_EQ(tuning_json(events).at("searches"), 2);
}

// As a worker that takes over may tell what the one before it has told already.
TEST(TuningCost, TakesAStepThatIsToldTwiceOnce) {
  std::vector<json> events = one_search();
  events.back() = events.at(3);
  events.push_back(tune(50, 500, 51, 102, json::array({started(0)})));
  const TuningRecord record = read_tuning(events);
  EXPECT_EQ(record.entries.size(), 4U);
  EXPECT_TRUE(record.costs.contains({2, 0})) << "one search was over, and not two";
  expect_cost(cost_of_trials(record), 300, 30, 60);
}

TEST(TuningCost, OfARunOfAnEarlierVersionIsTheTimeAlone) {
  std::vector<json> events = one_search();
  for (json& event : events)
    for (const char* key : {"samples", "core_seconds", "cost"}) event.erase(key);
  const TrialCost cost = cost_of_trials(read_tuning(events));
  EXPECT_EQ(cost.wall_seconds, 30);
  EXPECT_TRUE(std::isnan(cost.samples));
  EXPECT_TRUE(std::isnan(cost.core_seconds));
  EXPECT_TRUE(tuning_json(events).at("samples").is_null());
  EXPECT_TRUE(tuning_json(events).at("core_seconds").is_null());
}

// A file may have been written by anybody.
TEST(TuningCost, OfEventsThatMakeNoSenseIsNothing) {
  const json odd = {
      {"kind", "tune"},
      {"step", "x"},
      {"moves", {started(-1), {{"what", "started"}, {"trial", 1e300}}, "x", nullptr}}};
  EXPECT_TRUE(tuning_json({odd, {{"kind", "tune"}, {"moves", 3}}, {{"kind", 7}}}).is_null());
}

}  // namespace
}  // namespace ductile::run
