#include "ductile/run/report.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/options.h"
#include "ductile/page/testing/page_fault.h"
#include "ductile/run/metrics.h"
#include "ductile/run/minima.h"
#include "ductile/run/report_impl.h"

namespace ductile::run {
namespace {

using nlohmann::json;
using page::data_of;

void write_job(const RunFolder& run, const std::string& name) {
  spec::JobOptions job;
  job.name = name;
  job.train.epochs = 7;
  job.target = {"accuracy", 0.9};
  write_file_atomic(run.job_file(), OptionSet(job).to_toml());
}

std::vector<std::string> titles_of(const json& data) {
  std::vector<std::string> out;
  for (const json& panel : data["panels"]) out.push_back(panel["title"]);
  return out;
}

// From 4 to 2 workers, between the metric lines around it, in the curve of the workers and in its
// mark.
void expect_resize_at(const json& data, double epoch) {
  EXPECT_EQ(data["panels"][4]["series"][0]["value"], json({4.0, 2.0, 2.0}));
  EXPECT_EQ(data["panels"][4]["series"][0]["epoch"], json({0.0, epoch, 2.0}));
  for (const json& mark : data["marks"]) {
    if (mark["kind"] == "resize") {
      EXPECT_DOUBLE_EQ(mark.at("epoch").get<double>(), epoch);
    }
  }
}

TEST(Report, ShowsWhatARunDid) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  write_job(run, "fashion");
  {
    MetricsWriter writer(run);
    writer.event("start", {{"step", 0},
                           {"workers", 4},
                           {"host",
                            {{"cores", 2},
                             {"cpu", "Xeon"},
                             {"torch", "1.13.1"},
                             {"memory_bytes", int64_t{24} << 30}}}});
    for (int step = 10; step <= 100; step += 10) {
      writer.log(step, step / 50.0,
                 {{kTrainLoss, 2.0 / step}, {kLearningRate, 0.1}, {kSamplesPerSecond, 4310.0}});
    }
    writer.log(100, 2, {{kEvalAccuracy, 0.9153}, {kEvalLoss, 0.25}});
    writer.event("checkpoint",
                 {{"step", 50}, {"bytes", 2048}, {"bytes_written", 1024}, {"blocking_ms", 1.25}});
    writer.event("signal", {{"step", 60}, {"signal", "SIGTERM"}});
    writer.event("resume", {{"step", 50}});
    writer.event("resize", {{"step", 70}, {"from", 4}, {"to", 2}, {"reason", "preempted"}});
    writer.event("target", {{"step", 100},
                            {"metric", "accuracy"},
                            {"threshold", 0.9},
                            {"value", 0.9153},
                            {"samples", 12800}});
    const Cost cost{.wall_seconds = 192,
                    .core_seconds = 380,
                    .energy_joules = 12345,
                    .peak_rss_bytes = int64_t{870} << 20};
    writer.event("end", {{"step", 100},
                         {"epoch", 2},
                         {"status", "target_reached"},
                         {"samples", 12800},
                         {"samples_forward", 25600},
                         {"flops", 3.5e12},
                         {"digest", "0123456789abcdef0123456789abcdef"},
                         {"cost", to_json(cost)}});
  }
  write_report(run);
  const std::string html = read_file(run.report_file());
  for (const char* text : {"<h1>fashion</h1>",
                           "Target reached",
                           "cnn on digits, fp32 \u00b7 sgd, learning rate 0.1, cosine schedule",
                           "from job.toml, events.jsonl and metrics.jsonl.",
                           "91.53 %",
                           "4,310 /s",
                           "3.5e+12",
                           "25,600 samples forward, 12,800 back-propagated",
                           "3 min 12 s",
                           "6 min 20 s",
                           "12.3 kJ",
                           "870 MiB",
                           "Resized from 4 to 2 workers: preempted",
                           "Received SIGTERM",
                           "Resumed from the state after step 50",
                           "Checkpoint: 2 KiB, 1 KiB of it new, training waited 1.2 ms",
                           "Xeon",
                           "24 GiB",
                           "ductile train ",
                           "default 10",
                           "[train]",
                           "State digest",
                           "<code>0123456789abcdef0123456789abcdef</code>"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(html.find("--resume"), std::string::npos);  // it is done
  EXPECT_EQ(page::page_fault(html), "");

  const json data = data_of(html);
  EXPECT_EQ(titles_of(data), (std::vector<std::string>{"Loss", "Accuracy", "Learning rate",
                                                       "Throughput (samples/s)", "Workers"}));
  EXPECT_EQ(data["panels"][0]["series"][0]["name"], "train");
  EXPECT_EQ(data["panels"][0]["series"][0]["value"].size(), 10u);
  EXPECT_EQ(data["panels"][1]["target"], 0.9);
  EXPECT_EQ(data["panels"][1]["unit"], "percent");
  expect_resize_at(data, 1.4);
}

// What the `end` of a run says beyond its cost.
json figures_of_an_end() {
  json classes = json::array();
  for (int c = 0; c < 60; ++c)
    classes.push_back({{"class", c},
                       {"name", c == 7 ? std::string("owl") : fmt::format("class {}", c)},
                       {"samples", 40},
                       {"correct", c == 7 ? 10 : 36},
                       {"accuracy", c == 7 ? 0.25 : 0.9}});
  return {{"status", "done"},
          {"step", 100},
          {"updates", 100},
          {"samples", 12800},
          {"samples_forward", 25600},
          {"flops", 3.456e12},
          {"samples_per_second", 5227.4},
          {"weights_digest", "00112233445566778899aabbccddeeff"},
          {"digest", "0123456789abcdef0123456789abcdef"},
          {"noise", {{"scale", 412.3}, {"square", 0.1}, {"variance", 0.3}, {"batch_size", 128}}},
          {"final",
           {{"accuracy", 0.88},
            {"calibration_error", 0.0432},
            {"brier", 0.21},
            {"worst_class", classes[7]},
            {"classes", classes}}}};
}

TEST(Report, ShowsWorkClassesAndNoise) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  spec::JobOptions job;
  job.train.virtual_ranks = 4;
  write_file_atomic(run.job_file(), OptionSet(job).to_toml());
  {
    MetricsWriter writer(run);
    writer.event("evaluation", {{"step", 50},
                                {"accuracy", 0.8},
                                {"samples", 10000},
                                {"worst_class", {{"class", 3}, {"accuracy", 0.5}}}});
    EXPECT_EQ(read_history(run).samples, std::nullopt) << "those of an evaluation are not trained";
    writer.log(40, 0.8, {{kBatchSize, 64}, {"train/selected", 48}, {kSamplesPerSecond, 46709}});
    writer.log(50, 1, {{kEvalCalibrationError, 0.05}, {kNoiseScale, 300}, {kBatchSize, 128}});
    writer.event("end", figures_of_an_end());
  }
  write_report(run);
  const std::string html = read_file(run.report_file());
  for (const char* text :
       {"Floating-point operations", "3.46e+12", "25,600 samples forward, 12,800 back-propagated",
        "Worst class", "owl; 10 of 40 samples right", "4.32 %", "Brier score 0.21", "412 samples",
        "5,227 /s", "mean since the last start or resumption; last 46,709", "<h2>Classes</h2>",
        "The worst 50 of 60 classes", "00112233445566778899aabbccddeeff",
        "worst class 3 with 50.00 %"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(page::page_fault(html), "");
  EXPECT_EQ(
      titles_of(data_of(html)),
      (std::vector<std::string>{"Calibration error", "Batch size", "Gradient noise scale (samples)",
                                "Throughput (samples/s)", "Samples chosen, per update"}));
  EXPECT_EQ(to_json(read_history(run)).at("noise").at("scale"), 412.3);
}

// What was altered by hand is left out, and harms nothing.
TEST(Report, FiguresOfOtherTypesAreLeftOut) {
  const json good = figures_of_an_end();
  const std::vector<json> bad = {nullptr,
                                 "x",
                                 -1,
                                 json::array({1}),
                                 json{{"class", json::array()}},
                                 json::array({json{{"accuracy", 1}, {"class", 3}}})};
  for (const auto& [key, value] : good.items()) {
    for (const json& other : bad) {
      const TempFolder temp;
      const RunFolder run = RunFolder::create(temp.path(), "job");
      json altered = good;
      altered[key] = other;
      json inner = good;
      for (const auto& [name, of_final] : good.at("final").items()) inner["final"][name] = other;
      MetricsWriter writer(run);
      writer.event("end", altered);
      writer.event("end", inner);
      EXPECT_NO_THROW(write_report(run)) << key << " " << other;
      EXPECT_EQ(page::page_fault(read_file(run.report_file())), "");
    }
  }
}

json measured_minimum(const char* slices) {
  const bool plane = std::string(slices) == "2d";
  const json row = {1.5, 0.25, plane ? json("Infinity") : json(1.25)};
  return {
      {"step", 1200},
      {"loss", 0.25},
      {"gradient_norm", 0.125},
      {"samples", 1000},
      {"steps", 37},
      {"train_size", 60000},
      {"subspace", 0},
      {"sharpness",
       {{{"epsilon", 0.5}, {"value", 12.5}}, {{"epsilon", 0.25}, {"value", "Infinity"}}}},
      {"hessian", {{"largest", 31.5}, {"residual", 0.5}, {"smallest", -2.5}, {"converged", false}}},
      {"slices", {{"kind", slices}, {"places", {-1, 0, 1}}, {"losses", {row, row, row}}}}};
}

TEST(Report, ShowsTheMinimaThatWereMeasured) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  write_report(run);
  EXPECT_EQ(read_file(run.report_file()).find("Sharpness of the minimum"), std::string::npos);
  EXPECT_TRUE(data_of(read_file(run.report_file())).at("slices").is_null());

  append_minimum(run, measured_minimum("1d"));
  write_report(run);
  std::string html = read_file(run.report_file());
  for (const char* text : {"Sharpness of the minimum", "1,200", "0.500: 12.50, 0.250: not finite",
                           "31.50 \u00b1 0.500, not converged", "-2.50", "1,000 of 60,000",
                           "<td class=\"num\">37</td>", "id=\"slices\""})
    EXPECT_NE(html.find(text), std::string::npos) << text;
  json slices = data_of(html).at("slices");
  EXPECT_EQ(slices.at("plane"), false);
  EXPECT_EQ(slices.at("step"), 1200);
  EXPECT_EQ(slices.at("losses").at(0), json({1.5, 0.25, 1.25}));

  // The error is what half the step changes where that is more than the residual.
  json unsteady = measured_minimum("1d");
  unsteady["hessian"]["check"] = 29.25;
  append_minimum(run, unsteady);
  write_report(run);
  html = read_file(run.report_file());
  EXPECT_NE(html.find("31.50 \u00b1 2.25, not converged"), std::string::npos);

  // The newest one that has slices is drawn.
  append_minimum(run, measured_minimum("2d"));
  json without = measured_minimum("1d");
  without.erase("slices");
  append_minimum(run, without);
  write_report(run);
  html = read_file(run.report_file());
  slices = data_of(html).at("slices");
  EXPECT_EQ(slices.at("plane"), true);
  EXPECT_EQ(slices.at("losses").at(0), json({1.5, 0.25, nullptr}));
  EXPECT_EQ(page::page_fault(html), "");
  EXPECT_EQ(read_minima(run).size(), 4u);
}

TEST(Report, MinimaOfOtherTypesAreLeftOut) {
  const std::string& evil = page::kEvil;
  for (const char* kind : {"1d", "2d"}) {
    const json good = measured_minimum(kind);
    for (const json& other : {json(nullptr), json(evil), json(-1), json::array({1, evil}),
                              json::array({json::array({evil, evil, evil})}),
                              json{{evil, evil}, {"largest", evil}, {"losses", 3}}}) {
      const TempFolder temp;
      const RunFolder run = RunFolder::create(temp.path(), "job");
      JsonLines file(minima_file(run));
      for (const auto& [key, value] : good.items()) {
        json altered = good;
        altered[key] = other;
        file.append(altered);
        for (const auto& [inner, of_it] : value.items()) {
          if (!value.is_object()) break;
          json deeper = good;
          deeper[key][inner] = other;
          file.append(deeper);
          EXPECT_NO_THROW(write_report(run)) << key << inner << other;
        }
      }
      file.append_text("[torn");
      EXPECT_NO_THROW(write_report(run));
      EXPECT_EQ(page::page_fault(read_file(run.report_file())), "");
    }
  }
}

TEST(Report, OfAnyPartOfARunCanBeWritten) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  write_report(run);  // nothing but folders
  EXPECT_NE(read_file(run.report_file()).find("Not finished"), std::string::npos);
  write_job(run, "partial");
  {
    MetricsWriter writer(run);
    writer.event("start");
    writer.log(1, 0, {{kTrainLoss, std::nan("")}, {"spread", HUGE_VAL}});
  }
  write_report(run);
  const std::string html = read_file(run.report_file());
  EXPECT_NE(html.find("train/loss was not a finite number 1 time, first at step 1."),
            std::string::npos);
  EXPECT_NE(html.find("not reached"), std::string::npos);
  EXPECT_EQ(html.find("State digest"), std::string::npos);
  EXPECT_NE(html.find("ductile train --resume "), std::string::npos);
  EXPECT_EQ(data_of(html)["panels"].size(), 2u);

  write_file_atomic(run.job_file(), "nonsense = <b>");
  write_file_atomic(run.metrics_file(), "{\"step\":1}\nnonsense\n{\"step\":");
  write_report(run);
  const std::string broken = read_file(run.report_file());
  EXPECT_NE(broken.find("The configuration could not be read"), std::string::npos);
  EXPECT_NE(broken.find("nonsense = &lt;b&gt;"), std::string::npos);
  EXPECT_NE(broken.find("1 line of the run&#39;s records"), std::string::npos);
}

TEST(Report, KeepsTheFiguresOfAPartBeforeOneThatFailedEarly) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  {
    MetricsWriter writer(run);
    writer.event("end", figures_of_an_end());
    writer.event("resume", {{"step", 100}});
    writer.event("end", {{"status", "failed"}, {"step", 100}, {"message", "no memory"}});
  }
  write_report(run);
  const std::string html = read_file(run.report_file());
  for (const char* text : {"Worst class", "3.46e+12", "<h2>Classes</h2>", "no memory"})
    EXPECT_NE(html.find(text), std::string::npos) << text;
  EXPECT_FALSE(to_json(read_history(run)).contains("weights_digest")) << "the run went on";
}

TEST(Report, ShowsWhatATunerTriedAndKept) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  write_job(run, "tuned");
  const json slow = {{"lr", 0.001}, {"optimizer.adam.beta2", 0.99991}}, fast = {{"lr", 0.1}};
  {
    MetricsWriter writer(run);
    writer.event("tune", {{"step", 0},
                          {"what", "trial"},
                          {"moves", {{{"what", "started"}, {"trial", 0}, {"setting", slow}}}}});
    writer.event("tune", {{"step", 10},
                          {"what", "trial"},
                          {"moves",
                           {{{"what", "ran"},
                             {"trial", 0},
                             {"epochs", 0.25},
                             {"loss", 2.125},
                             {"curve", {{0.025, 2.25}, {0.25, 2.125}, {"x", 1}, {1}, nullptr}}},
                            {{"what", "started"}, {"trial", 1}, {"setting", fast}}}}});
    writer.event("tune", {{"step", 20},
                          {"what", "search_over"},
                          {"moves",
                           {{{"what", "ran"},
                             {"trial", 1},
                             {"epochs", 0.25},
                             {"loss", 0.75},
                             {"curve", {{0.025, 2.25}, {0.25, 0.75}}}},
                            {{"what", "dropped"}, {"trial", 0}, {"why", "it fell by 0.5"}},
                            {{"what", "chosen"},
                             {"trial", 1},
                             {"setting", fast},
                             {"why", "its loss falls fastest"}}}}});
    writer.event("tune", {{"step", 30},
                          {"what", "trial"},
                          {"moves",
                           {{{"what", "went_back"}, {"setting", fast}, {"why", "not finite"}},
                            {{"what", "started"}, {"trial", 0}, {"setting", slow}}}}});
  }
  write_report(run);
  const std::string html = read_file(run.report_file());
  const auto has = [&](const std::string& text) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  };
  has("lr 0.001, optimizer.adam.beta2 0.99991");
  has("its loss falls fastest");
  has("<td class=\"state\">dropped</td><td>it fell by 0.5</td>");
  has("the search kept lr 0.1");
  has("the run went back from lr 0.1");
  // In the frame of their search: from the top, and the winner down to the bottom.
  has("<polyline points=\"12.8,1.0 119.0,3.2\"/>");
  has("<polyline points=\"12.8,1.0 119.0,27.0\"/>");
  has("loss 2.25 to 0.750 over 0.250 epochs");
  EXPECT_EQ(data_of(html)["marks"].size(), 2U) << "trials are in the table alone";
  EXPECT_EQ(page::page_fault(html), "");
  const History history = read_history(run);
  const std::string tables = report::tuning_html(history);
  const std::string table = tables.substr(tables.find("<table class=\"tuning\""));
  size_t rows = 0;
  for (size_t at = table.find("<tr"); at != std::string::npos; at = table.find("<tr", at + 1))
    ++rows;
  EXPECT_EQ(rows, 1U + 3U) << "two searches";
  EXPECT_EQ(report::tuning_html(History{}), "");
}

TEST(Report, SaysOfEachTrialOfASearchThatIsOverWhatBecameOfIt) {
  const auto table_of = [](int chosen) {
    const TempFolder temp;
    const RunFolder run = RunFolder::create(temp.path(), "job");
    write_job(run, "tuned");
    {
      MetricsWriter writer(run);
      writer.event("tune", {{"step", 20},
                            {"what", "search_over"},
                            {"moves",
                             {{{"what", "ran"}, {"trial", 0}, {"epochs", 0.25}, {"loss", 2.0}},
                              {{"what", "ran"}, {"trial", 1}, {"epochs", 0.25}, {"loss", 3.0}},
                              {{"what", "chosen"},
                               {"trial", chosen},
                               {"setting", {{"lr", 0.1}}},
                               {"why", "the total budget is spent"}}}}});
    }
    return report::tuning_html(read_history(run));
  };
  const std::string first = table_of(0), none = table_of(-1);
  EXPECT_NE(first.find("dropped</td><td>the search was over, and another trial was better"),
            std::string::npos)
      << first;
  EXPECT_NE(first.find("chosen</td>"), std::string::npos) << first;
  EXPECT_EQ(none.find("chosen"), std::string::npos) << none;
  EXPECT_EQ(none.find("-1"), std::string::npos) << none;
  EXPECT_NE(none.find("no trial was better than the setting before it"), std::string::npos) << none;
}

// As a run that went on after a kill leaves them: what was done again is no other search.
TEST(Report, ShowsWhatTuningCostBesideTheWholeRun) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  write_job(run, "tuned");
  const std::string over =
      R"({"kind":"tune","what":"search_over","step":20,"samples":2500,"seconds":40,)"
      R"("core_seconds":70,"moves":[{"what":"ran","trial":0},{"what":"chosen","trial":0}]})"
      "\n";
  write_file_atomic(
      run.events_file(),
      R"({"kind":"start","step":0,"seconds":0,"core_seconds":1})"
      "\n"
      R"({"kind":"tune","what":"trial","step":0,"samples":0,"seconds":10,"core_seconds":10,)"
      R"("moves":[{"what":"started","trial":0}]})"
      "\n" +
          over + R"({"kind":"resume","step":10,"seconds":40,"core_seconds":70})" + "\n" + over +
          R"({"kind":"end","status":"done","step":90,"samples":10000,"seconds":120,)"
          R"("cost":{"wall_seconds":120,"core_seconds":240,"energy_joules":null,)"
          R"("peak_rss_bytes":1}})"
          "\n");
  const History history = read_history(run);
  const std::string tables = report::tuning_html(history);
  const auto has = [&](const std::string& text) {
    EXPECT_NE(tables.find(text), std::string::npos) << text << " in\n" << tables;
  };
  has("<td>Samples</td><td class=\"num\">2,500</td><td class=\"num\">2,500</td>"
      "<td class=\"num\">10,000</td>");
  has("25.00 %");  // of all three
  has("<td>Time</td><td class=\"num\">30 s</td><td class=\"num\">30 s</td>"
      "<td class=\"num\">2 min 00 s</td>");
  has("<td>Core time</td><td class=\"num\">1 min 00 s</td><td class=\"num\">1 min 00 s</td>"
      "<td class=\"num\">4 min 00 s</td>");
  EXPECT_EQ(tables.find("<td class=\"num\">2</td>"), std::string::npos) << "one search";
  EXPECT_EQ(to_json(history).at("tuning").at("samples"), 2500.0);
  write_report(run);
  EXPECT_EQ(page::page_fault(read_file(run.report_file())), "");
}

TEST(DescribeEvent, OfTheControllerAndOfASummaryIsASentence) {
  const auto text = [](const json& event) { return report::describe_event(event).text; };
  EXPECT_EQ(text({{"kind", "control"}, {"event", "phase"}, {"text", "queued -> starting: asked"}}),
            "From queued to starting: asked");
  EXPECT_EQ(text({{"kind", "control"}, {"event", "launch_failed"}, {"text", "worker 1"}}),
            "Launch failed: worker 1");
  EXPECT_EQ(text({{"kind", "control"}, {"event", "generation"}, {"text", "generation 1 from"}}),
            "Generation 1 from");
  EXPECT_EQ(text({{"kind", "summary"}, {"best", {{"accuracy", 0.5}, {"samples", 4}}}}),
            "Figures of the run: best accuracy 50.00 %");
  EXPECT_EQ(text({{"kind", "summary"}}), "Figures of the run");
}

TEST(Report, SaysWhatAnotherPlanDoesToTheResult) {
  const json before = {{"stages", 2}, {"replicas", "1"}, {"micro_batches", 4}};
  const json now = {{"stages", 1}, {"replicas", "2, 1"}, {"micro_batches", 8}};
  json event = {{"kind", "replan"}, {"step", 40}, {"asked", true},
                {"before", before}, {"now", now}, {"same_result", false}};
  EXPECT_EQ(report::describe_event(event).text,
            "Another plan, which its user gave it: 1 stage, 2, 1 replicas of each and 8 "
            "micro-batches in place of 2 stages, 1 replica of each and 4 micro-batches; from step "
            "40 on the result is that of another plan");
  event["same_result"] = true;
  EXPECT_TRUE(report::describe_event(event).text.ends_with("the result is the same to the bit"));
  event["may_round"] = true;
  EXPECT_NE(report::describe_event(event).text.find("bit, unless three"), std::string::npos);
  event.erase("before");
  EXPECT_NE(report::describe_event(event).text.find("in place of ?"), std::string::npos);
}

TEST(Report, SaysWhyARunWasPlannedAnew) {
  json event = {{"kind", "replan"}, {"step", 40}, {"workers", 1},
                {"from", 2},        {"to", 2},    {"same_result", true}};
  const std::string who =
      "Planned anew for 1 worker, whose memory did not hold the stages of the plan before: ";
  EXPECT_EQ(report::describe_event(event).text,
            who + "they keep less from step 40 on, and the result is the same");
  event["plan_before"] = "plan_before.json";
  event["to"] = 1;
  EXPECT_EQ(report::describe_event(event).text,
            who +
                "from step 40 on they run other stages, and the result is the same; the plan "
                "before is plan_before.json");
  event["same_result"] = false;
  EXPECT_EQ(report::describe_event(event).text,
            who +
                "from step 40 on the result is that of another plan; the plan before is "
                "plan_before.json");
}

TEST(Report, LetsNoTextOfTheRunBecomeMarkup) {
  const std::string& evil = page::kEvil;
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), evil);
  write_job(run, evil);
  {
    MetricsWriter writer(run);
    writer.event("start", {{"host", {{evil, evil}}}});
    writer.event(evil, {{evil, evil}});
    writer.event("error", {{"message", evil}});
    writer.event("resize", {{"reason", evil}, {"from", evil}});
    writer.event("tune",
                 {{"moves",
                   {{{"what", evil}, {"trial", 1}, {"setting", {{evil, evil}}}, {"why", evil}},
                    {{"what", "started"}, {"trial", evil}},
                    evil}}});
    writer.event("signal", {{"signal", evil}});
    writer.log(1, 0, {{evil, 1.0}, {"bad" + evil, std::nan("")}});
    writer.event("end", {{"status", "failed"}, {"message", evil}, {"digest", evil}});
  }
  write_report(run);
  const std::string html = read_file(run.report_file());
  EXPECT_EQ(page::page_fault(html), "");
  EXPECT_EQ(data_of(html)["marks"].size(), 6u);
}

TEST(Report, StaysSmallForALongRun) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  write_job(run, "long");
  std::string metrics;
  for (int step = 1; step <= 50'000; ++step) {
    metrics += fmt::format("{{\"step\":{},\"epoch\":{},\"seconds\":{},\"train/loss\":{}}}\n", step,
                           step / 100.0, step * 0.1, step == 33'333 ? 99.0 : 1.0 / step);
  }
  write_file_atomic(run.metrics_file(), metrics);
  {
    MetricsWriter writer(run);
    for (int i = 0; i < 1000; ++i) writer.event("checkpoint", {{"step", i}});
  }
  write_report(run);
  const std::string html = read_file(run.report_file());
  EXPECT_LT(html.size(), 500'000u);
  EXPECT_NE(html.find("600 more events are in events.jsonl"), std::string::npos);
  const json values = data_of(html)["panels"][0]["series"][0]["value"];
  EXPECT_LE(values.size(), 2000u);
  EXPECT_NE(std::find(values.begin(), values.end(), 99.0), values.end());
}

TEST(Report, NamesTheFileItCannotWrite) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  fs::remove_all(run.path());
  EXPECT_THROW(write_report(run), Error);
}

TEST(Report, APageThatCannotBeWrittenIsAWarning) {
  const TempFolder temp;
  const RunFolder folder = RunFolder::create(temp.path(), "job");
  EXPECT_EQ(leave_report(folder), "");
  fs::remove(folder.report_file());
  fs::create_directories(folder.report_file() / "in the way");
  const std::string text = leave_report(folder);
  EXPECT_NE(text.find(folder.report_file().string()), std::string::npos) << text;
  EXPECT_NE(text.find("`ductile report " + folder.path().string()), std::string::npos) << text;
}

}  // namespace
}  // namespace ductile::run
