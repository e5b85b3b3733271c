#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/base/testing.h"
#include "ductile/page/testing/page_fault.h"
#include "ductile/run/checkpoints.h"
#include "ductile/run/metrics.h"
#include "ductile/run/report.h"
#include "ductile/spec/job.h"

// What a report says of the run's job and its machine.
namespace ductile::run {
namespace {

using nlohmann::json;

// It was reached before the job got the one that it has now.
TEST(Report, ATargetThatTheJobHasNoMoreIsNotShown) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  spec::JobOptions job;
  job.target = {"accuracy", 0.9};
  write_file_atomic(run.job_file(), OptionSet(job).to_toml());
  MetricsWriter writer(run);
  const json reached = {{"step", 18}, {"metric", "accuracy"}, {"threshold", 0.5}, {"value", 0.645}};
  writer.event("target", reached);
  write_report(run);
  EXPECT_NE(read_file(run.report_file()).find("not reached"), std::string::npos);
  EXPECT_TRUE(report_json(run).at("target").is_null());
  json again = reached;
  again.update({{"threshold", 0.9}, {"value", 0.91}});
  writer.event("target", again);
  write_report(run);
  EXPECT_EQ(read_file(run.report_file()).find("not reached"), std::string::npos);
  EXPECT_EQ(report_json(run).at("target").at("threshold"), 0.9);
  job.target.metric = "";
  write_file_atomic(run.job_file(), OptionSet(job).to_toml());
  write_report(run);
  EXPECT_EQ(read_file(run.report_file()).find("Time to target"), std::string::npos);
  EXPECT_TRUE(report_json(run).at("target").is_null());
}

TEST(Report, SaysNothingOfAJobWhereThereIsNone) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  write_file_atomic(run.job_file(),
                    "# No job: a program logged this run by itself.\nname = \"a\"\n");
  MetricsWriter(run).log(1, 0, {{"loss", 1.0}});
  write_report(run);
  const std::string html = read_file(run.report_file());
  for (const char* text : {"cnn on digits", "ductile train", "<h2>Configuration</h2>"})
    EXPECT_EQ(html.find(text), std::string::npos) << text;
  EXPECT_NE(html.find("<h1>a</h1>"), std::string::npos);
  EXPECT_EQ(page::page_fault(html), "");
}

TEST(Report, TellsWhatRepeatsTheRun) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  spec::JobOptions job;
  const auto has = [&](const std::string& text) {
    write_file_atomic(run.job_file(), OptionSet(job).to_toml());
    write_report(run);
    return read_file(run.report_file()).find(text) != std::string::npos;
  };
  const std::string path = run.path().string();
  EXPECT_FALSE(has("--weights"));
  write_file_atomic(initial_weights_of(run), "");
  EXPECT_TRUE(has(path + "/job.toml --weights " + path + "/initial.safetensors"));
  job.train.rate_control = "goodput";
  EXPECT_FALSE(has("ductile train --replay")) << "it is not done";
  MetricsWriter(run).event("end", {{"status", "done"}, {"step", 1}});
  EXPECT_TRUE(has("ductile train --replay " + path));
}

TEST(Report, NamesABlasThatDoesNotKnowTheProcessor) {
  const TempFolder temp;
  const RunFolder run = RunFolder::create(temp.path(), "job");
  const auto warns = [&](const char* core) {
    MetricsWriter(run).event("start", {{"host", {{"kernels", "avx2"}, {"blas_kernels", core}}}});
    write_report(run);
    return read_file(run.report_file()).find("OPENBLAS_CORETYPE=Haswell") != std::string::npos;
  };
  EXPECT_FALSE(warns("Zen"));
  EXPECT_TRUE(warns("Prescott"));
}

}  // namespace
}  // namespace ductile::run
