// What a report lists of the run's events, and what it has in tables in their place.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/page/testing/page_fault.h"
#include "ductile/run/metrics.h"
#include "ductile/run/report.h"
#include "ductile/run/report_impl.h"

namespace ductile::run {
namespace {

using nlohmann::json;

std::vector<std::string> texts_of(const RunFolder& run, const spec::JobOptions& job) {
  const History history = read_history(run);
  std::vector<std::string> out;
  for (const report::ShownEvent& shown : report::shown_events(history, job))
    out.push_back(shown.row.text);
  return out;
}

TEST(ShownEvents, WorkersThatTakeOverGoOnWithARunAndDoNotStartIt) {
  EXPECT_EQ(report::describe_event({{"kind", "start"}, {"step", 0}, {"workers", 2}}).text,
            "Started with 2 workers");
  EXPECT_EQ(report::describe_event({{"kind", "start"}, {"step", 109}, {"workers", 1}}).text,
            "Went on with 1 worker");
}

TEST(ShownEvents, TellWhichHyperparametersAreOthersThanBefore) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  spec::JobOptions job;
  job.train.batch_size = 32;
  job.optimizer.lr = 0.1;
  json hyper = {{"lr", 0.1},
                {"momentum", job.optimizer.momentum},
                {"weight_decay", job.optimizer.weight_decay},
                {"beta1", job.optimizer.adam.beta1},
                {"beta2", job.optimizer.adam.beta2},
                {"clip_norm", job.optimizer.clip_norm},
                {"batch_size", 32},
                {"staleness", 0}};
  {
    MetricsWriter writer(run);
    writer.event("hyper", {{"step", 0}, {"hyper", hyper}});
    writer.log(10, 0.1, {{kLearningRate, 0.1}});
    writer.log(30, 0.3, {{kLearningRate, 0.5}});
    hyper["batch_size"] = 2048;
    hyper["lr"] = 0.151;
    writer.event("hyper", {{"step", 20}, {"hyper", hyper}});
    hyper["options"] = {{"model.dropout", 0.5}, {"no.such", 2}};
    hyper["lr"] = 0.5;
    writer.event("hyper", {{"step", 30}, {"hyper", hyper}});
    hyper.erase("options");
    writer.event("hyper", {{"step", 40}, {"hyper", hyper}});
    writer.event("hyper", {{"step", 50}, {"hyper", hyper}});
    writer.event("hyper", {{"step", 60}, {"hyper", "other"}});
    // As of trials of a tuner, whose metric lines are in no curve if they were dropped.
    hyper["lr"] = 0.75;
    writer.event("hyper", {{"step", 70}, {"hyper", hyper}});
    hyper["lr"] = 0.01;
    writer.event("hyper", {{"step", 80}, {"hyper", hyper}});
  }
  const std::string first = "From the next step on: ";
  EXPECT_EQ(texts_of(run, job), (std::vector<std::string>{
                                    "Hyperparameters as before",
                                    first + "batch 32 \u2192 2,048, learning rate 0.1 \u2192 0.151",
                                    first + "model.dropout 0 \u2192 0.5, no.such 2",
                                    first + "model.dropout 0.5 \u2192 0",
                                    "Hyperparameters as before",
                                    "hyper other",
                                    first + "learning rate 0.5 \u2192 0.75",
                                    first + "learning rate 0.75 \u2192 0.01",
                                }));
}

TEST(ShownEvents, ARoundOfProbesIsInItsTableAlone) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  json round = {{"step", 12},
                {"what", "probe_round"},
                {"phase", "explore"},
                {"probes", {{0, 2.5}, {1, 2.25}, {2, "NaN"}}},
                {"probed_lr", 0.1},
                {"fit", {2.5, -1, 1}},
                {"minimum_lr", 0.0625},
                {"lr_before", 0.1},
                {"lr", 0.2},
                {"why", "more such updates would lower the loss"}};
  {
    MetricsWriter writer(run);
    writer.event("start", {{"step", 0}});
    writer.event("rate_control", round);
    round["minimum_lr"] = nullptr;
    writer.event("rate_control", round);
    round.erase("minimum_lr");
    writer.event("rate_control", round);
    // A batch that never changes is no curve.
    writer.log(1, 0.1, {{kBatchSize, 128}, {"train/examined", 256}});
    writer.log(2, 0.2, {{kBatchSize, 128}, {"train/examined", 256}});
  }
  EXPECT_EQ(texts_of(run, {}), std::vector<std::string>{"Started"});
  const std::string table = report::probe_rounds_html(read_history(run));
  const auto count = [&](const std::string& text) {
    size_t out = 0;
    for (size_t at = table.find(text); at != std::string::npos; at = table.find(text, at + 1))
      ++out;
    return out;
  };
  EXPECT_EQ(count("more such updates"), 3U);
  EXPECT_EQ(count("Minimum at"), 1U);
  EXPECT_EQ(count(">0.0625<"), 1U);
  EXPECT_EQ(count(">none<"), 2U);
  write_report(run);
  const std::string html = read_file(run.report_file());
  EXPECT_EQ(page::page_fault(html), "");
  const json panels = page::data_of(html).at("panels");
  ASSERT_EQ(panels.size(), 1U);
  EXPECT_EQ(panels[0].at("title"), "Samples offered, per update");
}

TEST(ShownEvents, AreFewOnThePageOfARunWithMany) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  {
    MetricsWriter writer(run);
    writer.event("note", {{"step", 0}});  // as "control" in a real run, before its start
    writer.event("start", {{"step", 0}});
    for (int step = 1; step <= 3000; ++step) writer.event("evaluation", {{"step", step}});
    writer.event("signal", {{"step", 3000}});
  }
  const json data = chart_data(run);
  EXPECT_EQ(data.at("kinds"),
            json({{"note", 1}, {"start", 1}, {"evaluation", 3000}, {"signal", 1}}));
  const json& marks = data.at("marks");
  EXPECT_GT(marks.size(), 250U);
  EXPECT_LE(marks.size(), 502U);
  EXPECT_EQ(marks.at(1).at("kind"), "start");
  EXPECT_EQ(marks.back().at("kind"), "signal");
}

TEST(ShownEvents, ARoundOfProbesThatIsDoneAgainCountsOnce) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  {
    MetricsWriter writer(run);
    const auto round = [&](int step, const char* why) {
      writer.event("rate_control", {{"step", step}, {"what", "probe_round"}, {"why", why}});
    };
    writer.event("start", {{"step", 0}});
    round(10, "first");
    round(20, "lost");
    writer.event("resume", {{"step", 10}});
    round(20, "again");
  }
  const std::string table = report::probe_rounds_html(read_history(run));
  for (const char* why : {"first", "again"}) EXPECT_NE(table.find(why), std::string::npos) << why;
  EXPECT_EQ(table.find("lost"), std::string::npos);
}

TEST(ChartData, DrawsBatchesAsCounts) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  {
    MetricsWriter writer(run);
    writer.log(10, 0.5, {{kBatchSize, 32}, {kLearningRate, 0.1}});
    writer.log(20, 1, {{kBatchSize, 64}, {kLearningRate, 0.1}});
  }
  const json panels = chart_data(run)["panels"];
  ASSERT_EQ(panels.size(), 2U);
  EXPECT_EQ(panels[0]["unit"], "number") << panels[0]["title"];
  EXPECT_EQ(panels[1]["unit"], "count") << panels[1]["title"];
}

// Before the first line, between two, at one and after the last.
TEST(ChartData, AnEventWithoutAnEpochHasTheOneBetweenThoseOfTheMetrics) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  {
    MetricsWriter writer(run);
    writer.event("start", {{"step", 0}, {"workers", 1}});
    for (int step = 10; step <= 30; step += 10) writer.log(step, step / 20.0, {{kTrainLoss, 1.0}});
    for (int step : {4, 25, 30, 33})
      writer.event("resize", {{"step", step}, {"from", 1}, {"to", step}});
  }
  const json workers = chart_data(run)["panels"].back();
  EXPECT_EQ(workers["title"], "Workers");
  EXPECT_EQ(workers["series"][0]["epoch"], json({0.0, 0.2, 1.25, 1.5, 1.5, 1.5}));
}

}  // namespace
}  // namespace ductile::run
