#include "ductile/sim/report.h"

#include <gtest/gtest.h>

#include "ductile/page/testing/page_fault.h"

namespace ductile::sim {
namespace {

// One job of a policy, on one device of two for a hundred seconds.
ExperimentRun made_run(const std::string& policy, double mean) {
  ExperimentRun run;
  run.result.workload = "w";
  run.result.policy = policy;
  run.result.end = 200;
  run.result.jobs = {
      {.name = "j", .application = "app", .arrival = 10, .start = 20, .finish = 120}};
  run.result.timeline = {{0, 20, 120, {{0, 1}}}};
  run.result.rounds = {{.time = 0, .active = 1, .waiting = 1, .used = 0, .usable = 2},
                       {.time = 60, .active = 1, .waiting = 0, .used = 1, .usable = 2}};
  run.summary = {.jobs = 1, .mean = mean, .median = 90, .makespan = 200, .utilisation = 0.5};
  return run;
}

std::string cell_of(const std::string& html, const std::string& text) {
  const size_t at = html.find(">" + text + "<");
  const size_t begin = html.rfind("<td", at);
  return at == std::string::npos ? "none" : html.substr(begin, at + 1 - begin);
}

TEST(SimReport, MarksTheBestOfEachColumnAndSumsUpEachPolicy) {
  const auto cluster = sched::homogeneous_cluster(1, 2);
  const std::string html =
      report_html({made_run("a", 110), made_run("b", 720), made_run("b", 880)}, cluster, "so & so");
  EXPECT_EQ(page::page_fault(html), "");
  EXPECT_NE(html.find("<h1>2 policies on 2 devices</h1>"), std::string::npos);
  EXPECT_NE(html.find("1 workload; 1 node of 1 type"), std::string::npos);
  EXPECT_NE(html.find("so &amp; so"), std::string::npos);
  EXPECT_EQ(cell_of(html, "110 s"), "<td class=\"num best\">");
  EXPECT_EQ(cell_of(html, "13.3 min"), "<td class=\"num\">");  // the mean of b's two
  EXPECT_EQ(cell_of(html, "50.0 %"), "<td class=\"num\">");    // more use is no better in itself
  EXPECT_EQ(html.find("Premium"), std::string::npos);
  EXPECT_EQ(html.find("Teams"), std::string::npos);
  const auto data = page::data_of(html);
  EXPECT_EQ(data["policies"], (nlohmann::json{"a", "b"}));
  ASSERT_EQ(data["runs"].size(), 3u);
  EXPECT_EQ(data["runs"][0]["bars"], (nlohmann::json{{0, 1, 20.0, 120.0, 0}}));
  EXPECT_EQ(data["runs"][0]["used"], (nlohmann::json{{0.0, 0.0}, {60.0, 0.5}}));
  // One policy alone is not the best of anything.
  EXPECT_EQ(cell_of(report_html({made_run("a", 110)}, cluster), "110 s"), "<td class=\"num\">");
}

TEST(SimReport, HasColumnsForTiersServicesAndTeamsWhereThereAreSuch) {
  ExperimentRun run = made_run("a", 110), other = made_run("b", 100);
  run.summary.sla = 0.75;
  run.summary.tiers[0] = {.windows = 8, .kept = 6};
  run.summary.services = 1;
  run.summary.attained = 0.875;
  run.summary.teams = {{.team = 0, .jobs = 3, .mean = 240}, {.team = 1, .jobs = 1, .mean = 60}};
  const std::string html = report_html({run, other}, sched::homogeneous_cluster(1, 2));
  EXPECT_EQ(page::page_fault(html), "");
  // Only one policy has it: nothing to be the best of, and an empty cell for the other.
  EXPECT_EQ(cell_of(html, "75.0 %"), "<td class=\"num\">");
  EXPECT_EQ(html.find("Standard"), std::string::npos);
  EXPECT_EQ(cell_of(html, "87.5 %"), "<td class=\"num\">");
  EXPECT_EQ(page::data_of(html)["services"], true);
  EXPECT_EQ(cell_of(html, "4 min"), "<td class=\"num\">");
}

TEST(SimReport, LetsNoNameBecomeMarkup) {
  ExperimentRun run = made_run(page::kEvil, 110);
  run.result.workload = page::kEvil;
  run.result.jobs[0].name = run.result.jobs[0].application = page::kEvil;
  sched::Cluster cluster = sched::homogeneous_cluster(1, 2);
  cluster.types[0] = page::kEvil;
  const std::string html = report_html({run}, cluster, page::kEvil);
  EXPECT_EQ(page::page_fault(html), "");
  EXPECT_EQ(page::data_of(html)["runs"][0]["jobs"][0]["name"], page::kEvil);
}

}  // namespace
}  // namespace ductile::sim
