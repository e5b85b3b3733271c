#include "ductile/run/trace.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/page/testing/page_fault.h"
#include "ductile/run/metrics.h"
#include "ductile/run/report.h"

namespace ductile::run {
namespace {

StageTimeline step_of(int64_t number, double scale) {
  StageTimeline step;
  step.step = number;
  step.time = 1000 + static_cast<double>(number);
  step.intervals = {{"forward", 0, 0, 0, 0, scale},
                    {"wait", 1, 1, 0, 0, scale},
                    {"transfer", 1, 1, 0, scale, 1.5 * scale},
                    {"forward", 1, 1, 0, 1.5 * scale, 2 * scale}};
  step.memory = {{0, 1536 * scale}, {1, 2048}};
  return step;
}

struct OneRun {
  TempFolder place;
  RunFolder folder = RunFolder::create(place.path(), "trace", "");
};

constexpr const char* kPlan =
    R"({"plan":{},"evaluation":{"stages":[{"peak_memory":8192,"state_memory":1024},{}]},)"
    R"("timeline":[{"kind":"forward","stage":0,"micro_batch":0,"begin":0,"end":0.5},)"
    R"({"kind":"transfer","stage":0,"to":1,"micro_batch":0,"begin":0.5,"end":0.75}]})";

TEST(Trace, StepsAreReadInOrderAndTheLastOfEachCounts) {
  const OneRun run;
  EXPECT_TRUE(read_trace(run.folder).empty());
  append_trace(run.folder, step_of(4, 1));
  append_trace(run.folder, step_of(3, 1));
  append_trace(run.folder, step_of(4, 2));  // it was done again
  write_file_atomic(trace_file(run.folder),
                    read_file(trace_file(run.folder)) + "{\"step\":9,\"time\":1}\n{\"ste");
  const auto steps = read_trace(run.folder);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].step, 3);
  EXPECT_EQ(steps[1].intervals, step_of(4, 2).intervals);
  EXPECT_EQ(steps[1].memory, step_of(4, 2).memory);
  EXPECT_EQ(steps[1].seconds(), 4);
  EXPECT_EQ(steps[1].num_stages(), 2);
}

TEST(Trace, IsWrittenForPerfettoBesideThePrediction) {
  const OneRun run;
  write_chrome_trace(run.folder);
  EXPECT_FALSE(fs::exists(chrome_trace_file(run.folder)));
  append_trace(run.folder, step_of(3, 1));
  append_trace(run.folder, step_of(4, 1));
  write_file_atomic(plan_file(run.folder), kPlan);
  write_chrome_trace(run.folder);
  const auto trace = nlohmann::json::parse(read_file(chrome_trace_file(run.folder)));
  int recorded = 0, predicted = 0, names = 0;
  for (const auto& event : trace.at("traceEvents")) {
    names += event.at("ph") == "M";
    if (event.at("ph") != "X") continue;
    (event.at("pid") == 1 ? recorded : predicted) += 1;
    EXPECT_GE(event.at("dur"), 0);
    if (event.at("pid") == 1 && event.at("args").at("step") == 4) {
      EXPECT_GE(event.at("ts"), 1e6);
    }
  }
  EXPECT_EQ(recorded, 8);
  EXPECT_EQ(predicted, 2);
  EXPECT_EQ(names, 2 + 2 + 2);  // processes; stages; stage 0 and its messages
}

// Both files may be anybody's.
TEST(Trace, WhatNoRunCanHaveIsLeftOut) {
  const OneRun run;
  for (const char* stage : {"-1", "2147483647", "4294967296", "65536", "\"0\"", "1e300"}) {
    append_trace(run.folder, step_of(3, 1));
    const std::string interval =
        std::string(R"({"kind":"forward","begin":0,"end":1,"stage":)") + stage + "}";
    write_file_atomic(trace_file(run.folder), read_file(trace_file(run.folder)) +
                                                  R"({"step":4,"time":1,"intervals":[)" + interval +
                                                  "]}\n");
    write_file_atomic(plan_file(run.folder), R"({"timeline":[)" + interval + "]}");
    EXPECT_EQ(read_trace(run.folder).size(), 1U) << stage;
    EXPECT_TRUE(predicted_timeline(run.folder).intervals.empty()) << stage;
    EXPECT_TRUE(predicted_timeline(run.folder).memory.empty()) << stage;
    write_report(run.folder);
    EXPECT_EQ(page::page_fault(read_file(run.folder.report_file())), "") << stage;
  }
}

// Three virtual ranks are two stages of one pipeline and the first of the next.
TEST(Trace, TheReportShowsTheMemoryOfWorkersBesideThePlan) {
  const OneRun run;
  {
    MetricsWriter writer(run.folder);
    const nlohmann::json wide = {{"ranks", {0, 3}},     {"weights", 1024},
                                 {"optimizer", 2048},   {"sum", 512},
                                 {"resident", 7 << 20}, {"resident_before", 3 << 20}};
    const nlohmann::json idle = {{"ranks", {3, 3}}, {"resident", 5 << 20}};
    writer.event("memory", {{"step", 1}, {"members", nlohmann::json::array({idle})}});
    writer.event("memory", {{"step", 4}, {"members", nlohmann::json::array({wide, idle})}});
  }
  write_file_atomic(plan_file(run.folder),
                    R"({"evaluation":{"stages":[{"peak_memory":1000},{"peak_memory":2096}]}})");
  write_report(run.folder);
  const std::string html = read_file(run.folder.report_file());
  for (const char* text :
       {"Memory of 2 workers: by their parts of the state 0 B to 3.5 KiB each, resident 5 MiB to 7 "
        "MiB",
        "Memory of 1 worker: by their parts of the state 0 B each, resident 5 MiB",
        "Memory of the workers", "0 to 2", "none", "Plan, at most", "3 MiB", ">4 KiB<"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(page::page_fault(html), "");
  // The three are one stage and the two parts of the next.
  write_file_atomic(plan_file(run.folder),
                    R"({"plan":{"stages":[{},{"tensor":2}]},)"
                    R"("evaluation":{"stages":[{"peak_memory":1024},{"peak_memory":2048}]}})");
  write_report(run.folder);
  EXPECT_NE(read_file(run.folder.report_file()).find(">5 KiB<"), std::string::npos);
}

// Events, too.
TEST(Trace, MemoryThatNoRunCanHaveIsNoFault) {
  const OneRun run;
  {
    MetricsWriter writer(run.folder);
    for (const char* members : {"7", "[]", "[7,\"x\",[]]", R"([{"ranks":[-5,1e300]}])",
                                R"([{"ranks":[0,9223372036854775807],"weights":"many"}])"})
      writer.event("memory", {{"members", nlohmann::json::parse(members)}});
  }
  write_file_atomic(plan_file(run.folder), R"({"evaluation":{"stages":[{},7]}})");
  write_report(run.folder);
  EXPECT_EQ(page::page_fault(read_file(run.folder.report_file())), "");
}

TEST(Trace, AStepThatWasRecordedLaterThanTheNextBeginsNothingBeforeZero) {
  const OneRun run;
  StageTimeline late = step_of(3, 1);
  late.time = 5000;
  append_trace(run.folder, step_of(4, 1));
  append_trace(run.folder, late);
  write_chrome_trace(run.folder);
  const auto trace = nlohmann::json::parse(read_file(chrome_trace_file(run.folder)));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      EXPECT_GE(event.at("ts"), 0);
    }
  }
}

TEST(Trace, APipeOfItsNameIsRefusedAndNotWaitedFor) {
  const OneRun run;
  ASSERT_EQ(::mkfifo(trace_file(run.folder).c_str(), 0600), 0);
  EXPECT_THROW(RunFolder::open(run.folder.path()), Error);
}

TEST(Trace, TheReportShowsTheMedianStepBesideThePrediction) {
  const OneRun run;
  write_report(run.folder);
  EXPECT_EQ(read_file(run.folder.report_file()).find("Pipeline timeline"), std::string::npos);
  for (const int64_t step : {3, 4, 5}) {
    append_trace(run.folder, step_of(step, step == 4 ? 1.0 : step));
  }
  write_report(run.folder);
  const std::string alone = read_file(run.folder.report_file());
  EXPECT_NE(alone.find("Step 3, the median of 3 recorded"), std::string::npos);
  EXPECT_EQ(alone.find("the plan predicted"), std::string::npos);
  EXPECT_TRUE(fs::exists(chrome_trace_file(run.folder)));
  EXPECT_NE(alone.find("4.5 KiB"), std::string::npos);
  EXPECT_EQ(alone.find("memory, predicted"), std::string::npos);
  write_file_atomic(plan_file(run.folder), kPlan);
  write_report(run.folder);
  const std::string beside = read_file(run.folder.report_file());
  EXPECT_NE(beside.find("the plan predicted"), std::string::npos);
  EXPECT_NE(beside.find("memory, predicted"), std::string::npos);
  EXPECT_NE(beside.find("7 KiB"), std::string::npos);
  write_file_atomic(plan_file(run.folder), "{");  // damaged: nothing is predicted
  write_report(run.folder);
}

}  // namespace
}  // namespace ductile::run
