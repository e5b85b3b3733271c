#include "ductile/plan/report.h"

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/testing.h"
#include "ductile/graph/builders.h"
#include "ductile/page/assets.h"
#include "ductile/page/numbers.h"
#include "ductile/page/testing/page_fault.h"
#include "ductile/plan/report_impl.h"

namespace ductile::plan {
namespace {

Report small_report() {
  PlannerOptions options;
  options.batch = 64;
  const graph::Graph graph = graph::build_graph("candle:3,2,256");
  const Devices devices = uniform_devices(4, 4, {});
  std::vector<Compared> compared;
  for (const char* name : {"equal", "data"}) {
    compared.push_back({name, run_baseline(name, graph, devices, options)});
  }
  return make_report(graph, devices, options.objective, make_plan(graph, devices, options),
                     std::move(compared));
}

TEST(Report, JsonHoldsThePlanThatWasJudged) {
  const Report r = small_report();
  ASSERT_TRUE(r.planned.feasible);
  const auto json = to_json(r);
  EXPECT_EQ(json["evaluation"]["seconds"], r.timeline.seconds);
  EXPECT_EQ(json["evaluation"]["stages"].size(), r.planned.plan.stages.size());
  for (const auto& stage : json["evaluation"]["stages"]) {
    EXPECT_GT(stage["state_memory"], 0);
    EXPECT_LE(stage["state_memory"], stage["peak_memory"]);
  }
  EXPECT_EQ(json["evaluation"]["state_factor"], r.graph.state_factor);
  EXPECT_EQ(json["evaluation"]["optimizer_factor"], r.graph.optimizer_factor);
  EXPECT_EQ(json["baselines"].size(), 2u);
  // Read back, its own orders give the same time and memory.
  const Plan again = plan_from_json(json["plan"], r.graph, "plan");
  EXPECT_FALSE(again.orders.empty());
  const Report given = make_report(r.graph, r.devices, again);
  EXPECT_EQ(given.timeline.seconds, r.timeline.seconds);
  EXPECT_EQ(given.timeline.peak_memory, r.timeline.peak_memory);
}

TEST(Report, TheMemoryOfDevicesThatTakeTurnsBelongsToNoStage) {
  const Report r = small_report();
  nlohmann::json plan = {{"format", "ductile.plan"}, {"version", 1}, {"batch", 64}};
  const size_t half = r.graph.ops.size() / 2;
  for (const bool second : {false, true}) {
    nlohmann::json names = nlohmann::json::array();
    for (size_t i = second ? half : 0; i < (second ? r.graph.ops.size() : half); ++i) {
      names.push_back(r.graph.ops[i].name);
    }
    plan["stages"].push_back({{"ops", names},
                              {"micro_batch", 16},
                              {"in_flight", 64},
                              {"devices", nlohmann::json::array({0})}});
  }
  const auto json = to_json(make_report(r.graph, r.devices, plan_from_json(plan, r.graph, "plan")));
  for (const auto& stage : json["evaluation"]["stages"]) {
    EXPECT_GT(stage["peak_memory"], 0);
    EXPECT_FALSE(stage.contains("state_memory"));
  }
}

// The bound beside the timeline holds for the timeline, not for the formula.
TEST(Report, PageAndJsonShowHowFarThePlanMayBeFromTheBest) {
  const Report r = small_report();
  EXPECT_NEAR(r.planned.schedule_gap, r.timeline.seconds / r.planned.schedule_bound - 1, 1e-12);
  EXPECT_EQ(to_json(r)["search"]["schedule_bound"], r.planned.schedule_bound);
  EXPECT_EQ(to_json(r)["search"]["schedule_gap"], r.planned.schedule_gap);
  const std::string gap = page::as_percent(r.planned.schedule_gap);
  EXPECT_NE(to_html(r).find("Above the bound at most</div><div class=\"value\">" + gap),
            std::string::npos);
}

TEST(Report, WhatTakesNoTimeIsShownWithoutInfinities) {
  graph::Graph g;
  g.name = "nothing";
  g.ops.resize(2);
  g.ops[0].name = "a", g.ops[1].name = "b";
  g.edges = {{0, 1, 0, 0}};
  PlannerOptions options;
  options.batch = 4;
  const Devices devices = uniform_devices(2, 2, {});
  const Planned p = make_plan(g, devices, options);
  ASSERT_TRUE(p.feasible);
  EXPECT_EQ(p.simulated_seconds, 0);
  EXPECT_EQ(p.schedule_gap, 0);
  const Report r = make_report(g, devices, options.objective, p,
                               {{"equal", run_baseline("equal", g, devices, options)}});
  for (const std::string& text : {to_html(r), to_json(r).dump(), to_svg(r)}) {
    EXPECT_EQ(text.find("inf"), std::string::npos);
    EXPECT_EQ(text.find("nan"), std::string::npos);
  }
}

TEST(Report, ThePictureHasARowForEachSetOfDevicesAndEveryBox) {
  Report r = small_report();
  const std::string svg = to_svg(r);
  for (const Stage& s : r.planned.plan.stages) {
    EXPECT_NE(svg.find(" " + device_runs(s.devices) + "<"), std::string::npos);
  }
  EXPECT_NE(svg.find("class='f'"), std::string::npos);
  EXPECT_NE(svg.find("class='b'"), std::string::npos);
  // However many tasks there are, the picture stays small: 120,000 of them here.
  r.timeline.boxes.clear();
  const double step = r.timeline.seconds / 120'000;
  for (int i = 0; i < 120'000; ++i) {
    r.timeline.boxes.push_back({Box::Kind::forward, 0, -1, i, i * step, (i + 1) * step});
  }
  EXPECT_LT(to_svg(r).size(), 400'000u);
}

TEST(Report, NamesAreEscaped) {
  Report r = small_report();
  r.graph.name = page::kEvil;
  r.graph.sample = page::kEvil;
  r.compared[0].name = page::kEvil;
  r.compared[1].result.failure = page::kEvil;
  r.planned.space = page::kEvil;
  for (graph::Op& op : r.graph.ops) op.name = "<b>" + op.name + page::kEvil;
  const std::string html = to_html(r);
  EXPECT_EQ(page::page_fault(html), "");
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_NE(html.find("&lt;/script&gt;"), std::string::npos);
  // A page that is alone has its own colours, as the picture that is alone has.
  for (const std::string& text : {html, to_svg(r)}) {
    EXPECT_NE(text.find(page::kColorsCss), std::string::npos);
    EXPECT_NE(text.find(kPictureCss), std::string::npos);
    EXPECT_EQ(text.find("<img"), std::string::npos);
  }
}

TEST(Report, OperatorsAreNamedInTheOrderInWhichTheyRun) {
  graph::Graph g = graph::build_graph("chain:6");
  for (graph::Edge& e : g.edges) std::swap(e.from, e.to);  // the last is the first
  const OpNames names(g);
  Stage stage;
  stage.ops = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(names.first(stage, 40), "op5");
  EXPECT_EQ(names.ends(stage), "op5 … op0 (6)");
  stage.ops = {1, 2, 3};
  EXPECT_EQ(names.ends(stage), "op3, op2, op1");
  EXPECT_EQ(names.some(stage), "op3, op2, op1");
}

TEST(Report, CountsAreOfWhatTheGraphCallsASample) {
  graph::Graph g = graph::build_graph("chain:2");
  EXPECT_EQ(samples_text(g, 1), "1 sample");
  EXPECT_EQ(samples_text(g, 64), "64 samples");
  g.sample = "micro-batch";
  EXPECT_EQ(samples_text(g, 64), "64 micro-batches");
  EXPECT_EQ(samples_word(g), "Micro-batches");
  g.sample = "micro-batch of 8";
  EXPECT_EQ(samples_text(g, 3), "3 x micro-batch of 8");
}

TEST(Report, AnInfeasibleRequestSaysWhatWouldHelp) {
  DeviceGroup group;
  group.memory = 200e6;
  PlannerOptions options;
  options.batch = 16;
  const graph::Graph graph = graph::build_graph("gpt:6,1024,16,128,1000");
  const Devices devices = uniform_devices(2, 2, group);
  const Report r =
      make_report(graph, devices, options.objective, make_plan(graph, devices, options));
  ASSERT_FALSE(r.planned.feasible);
  EXPECT_GT(r.planned.memory_needed, 200e6);
  EXPECT_NE(advice(r).find("enough would be"), std::string::npos) << advice(r);
  EXPECT_EQ(to_json(r)["feasible"], false);
  EXPECT_NE(to_html(r).find("no plan was found"), std::string::npos);
  // What it says is true.
  group.memory = r.planned.memory_needed;
  EXPECT_TRUE(make_plan(r.graph, uniform_devices(2, 2, group), options).feasible);
}

// A prime number: one micro-batch of all samples, or as many as there are samples.
TEST(Report, ABatchWithoutDivisorsIsToldAsWhatItIs) {
  const graph::Graph graph = graph::build_graph("candle:2");
  const Devices devices = find_devices("4");
  PlannerOptions options;
  options.time_limit = 5;
  for (const int64_t batch : {int64_t{1'099'511'627'689}, int64_t{20'000'003}}) {
    options.batch = batch;
    options.micro_batches.clear();
    const Report r =
        make_report(graph, devices, options.objective, make_plan(graph, devices, options));
    ASSERT_FALSE(r.planned.feasible) << batch;
    EXPECT_EQ(r.planned.left_out, 1);
    EXPECT_NE(advice(r).find("a batch with more divisors"), std::string::npos) << advice(r);
    options.micro_batches = {1};
    EXPECT_NE(
        testing::text_of([&] { make_plan(graph, devices, options); }).find("take larger ones"),
        std::string::npos)
        << "which its user chose";
  }
}

TEST(Report, DeviceRunsAreShort) {
  EXPECT_EQ(device_runs({3, 0, 1, 2, 7}), "0-3,7");
  EXPECT_EQ(device_runs({}), "");
}

TEST(Report, TheCommittedSchemaIsTheOneOfTheCode) {
  const auto file = std::filesystem::path(DUCTILE_SOURCE_DIR) / "docs/reference/plan.schema.json";
  ASSERT_TRUE(std::filesystem::exists(file)) << "run scripts/reference";
  EXPECT_EQ(nlohmann::json::parse(read_file(file)), plan_schema()) << "run scripts/reference";
}

}  // namespace
}  // namespace ductile::plan
