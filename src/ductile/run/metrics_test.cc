#include "ductile/run/metrics.h"

#include <cmath>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/run/history.h"

namespace ductile::run {
namespace {

using nlohmann::json;

TEST(MetricsWriter, WritesLinesOfTheDocumentedSchema) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  MetricsWriter writer(run);
  writer.log(10, 0.25, {{kTrainLoss, 2.5}, {kLearningRate, 0.1}, {"odd", std::nan("")}});
  writer.event("checkpoint", {{"step", 10}, {"bytes", 1234}, {"ratio", HUGE_VAL}});
  writer.event("note");
  writer.flush();

  const auto metrics = read_json_lines(run.metrics_file());
  ASSERT_EQ(metrics.size(), 1u);
  EXPECT_EQ(metrics[0]["step"], 10);
  EXPECT_EQ(metrics[0]["epoch"], 0.25);
  EXPECT_GT(metrics[0]["time"].get<double>(), 1.7e9);
  EXPECT_GE(metrics[0]["seconds"].get<double>(), 0);
  EXPECT_EQ(metrics[0]["train/loss"], 2.5);
  EXPECT_EQ(metrics[0]["odd"], "NaN");
  const auto events = read_json_lines(run.events_file());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["kind"], "checkpoint");
  EXPECT_EQ(events[0]["bytes"], 1234);
  EXPECT_EQ(events[0]["ratio"], "Infinity");
  EXPECT_EQ(events[1]["kind"], "note");
}

TEST(MetricsWriter, GoesByTheClockOfTheRunAndNeverBack) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  std::optional<double> told;
  MetricsWriter writer(run, {}, 1, [&] { return told; });
  const auto seconds = [&] {
    writer.log(1, 0, {});
    return read_json_lines(run.metrics_file()).back().at("seconds").get<double>();
  };
  EXPECT_LT(seconds(), 100) << "its own until it is told";
  told = 500;
  EXPECT_EQ(seconds(), 500);
  told = 400;
  EXPECT_EQ(seconds(), 500);
  told = 501.25;
  EXPECT_EQ(seconds(), 501.25);
  MetricsWriter next(run);
  EXPECT_GE(next.seconds(), 501.25);
}

TEST(MetricsWriter, RefusesNamesThatEveryLineHas) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  MetricsWriter writer(run);
  EXPECT_THROW(writer.log(1, 0, {{"step", 1}}), Error);
  EXPECT_THROW(writer.event("x", {{"kind", "y"}}), Error);
  EXPECT_FALSE(fs::exists(run.metrics_file()));
}

// Killed at step 5 after a checkpoint at 3: the steps done again count once, and time never runs
// backwards.
TEST(MetricsWriter, CountsEachStepOnceAfterAResume) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  {
    MetricsWriter writer(run);
    for (int step = 1; step <= 5; ++step) writer.log(step, 0, {{kTrainLoss, 1.0 / step}});
    writer.event("evaluation", {{"step", 5}});
  }
  {
    JsonLines events(run.events_file());
    events.append({{"time", 1.7e9}, {"seconds", 100.0}, {"kind", "note"}});
  }
  MetricsWriter writer(run, 3);
  EXPECT_GE(writer.seconds(), 100);
  writer.event("resume", {{"step", 3}});
  for (int step = 4; step <= 6; ++step) writer.log(step, 0, {{kTrainLoss, 1.0 / step}});

  std::vector<int> steps;
  for_each_diary_line(run.metrics_file(), [&](json& line) {
    steps.push_back(line["step"].get<int>());
    if (steps.size() > 3) {
      EXPECT_GE(line["seconds"].get<double>(), 100);
    }
  });
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(read_json_lines(run.events_file()).size(), 3u);  // history stays
}

TEST(MetricsWriter, TakesCallsFromManyThreads) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  MetricsWriter writer(run);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&writer, t] {
        const std::string name = fmt::format("a{}", t);
        for (int i = 0; i < 50; ++i) {
          writer.log(i, 0, {{name, i * 1.0}});
          writer.event("note", {{"thread", t}});
        }
      });
    }
  }
  EXPECT_EQ(read_json_lines(run.metrics_file()).size(), 200u);
  EXPECT_EQ(read_json_lines(run.events_file()).size(), 200u);
}

}  // namespace
}  // namespace ductile::run
