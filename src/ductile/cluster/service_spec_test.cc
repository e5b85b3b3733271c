#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/cluster/job_runner_impl.h"
#include "ductile/cluster/service_spec_impl.h"

namespace ductile::cluster {
namespace {

std::string application(const std::string& name, const std::string& job) {
  JobRecord record;
  record.id = 1;
  record.submission.name = name;
  record.submission.tier = "standard";
  const Work work = work_of("train", {{"job", job}});
  return demand_of(record, work, application_of(work), {}, 4, 0).application;
}

// What a job measures is known to the next one of its kind before that has begun, as in the
// simulator: names and learning rates are not what a step's time depends on.
TEST(Application, JobsOfOneModelOnOneKindOfDataBehaveAlike) {
  const std::string mlp = "[model]\nname = \"mlp\"\nhidden = [16]\n";
  const std::string first = application("monday", mlp);
  EXPECT_EQ(application("tuesday", "seed = 7\n" + mlp + "[optimizer]\nlr = 0.3\n"), first);
  EXPECT_EQ(application("longer", mlp + "[train]\nmax_steps = 900\nbatch_size = 64\n"), first);
  EXPECT_NE(application("monday", "[model]\nname = \"mlp\"\nhidden = [17]\n"), first);
  EXPECT_NE(application("monday", mlp + "[train]\nprecision = \"bf16\"\n"), first);
  EXPECT_NE(application("monday", mlp + "[augment]\npad = 2\n"), first);
  EXPECT_EQ(first.substr(0, 4), "mlp-");
}

TEST(Application, OfOtherProgramsTheNameIsAllThatIsKnown) {
  JobRecord record;
  record.submission.name = "sweep";
  record.submission.tier = "standard";
  const Work work = work_of("command", {{"command", {"true"}}, {"directory", "/"}});
  EXPECT_EQ(demand_of(record, work, application_of(work), {}, 4, 0).application, "sweep");
}

// Whoever writes to the interface is not where the job runs.
TEST(CheckSpec, PathsOfATrainingJobAreAbsolute) {
  const Submission submission;
  const auto check = [&](const std::string& library) {
    const std::string job = "[model]\nname = \"custom\"\nlibrary = \"" + library + "\"\n";
    check_spec(submission, work_of("train", {{"job", job}}), {}, 4, 4);
  };
  EXPECT_NO_THROW(check("/models/model.so"));
  for (const char* relative : {"model.so", "./model.so", "~/model.so"}) {
    try {
      check(relative);
      ADD_FAILURE() << relative;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(error.message().find("model.library"), std::string::npos) << error.message();
    }
  }
}

// A disk may go while a job starts, after everybody has seen that it is there.
TEST(FolderOfRuns, WhatFailsWithoutItIsTriedAgainAndMakesNoOther) {
  const TempFolder place;
  const fs::path runs = place.path() / "runs";
  const RunnerEnd failed{Phase::failed, "no such run directory"};
  const RunsFolder folder{runs, ""};
  const RunnerEnd rests = unless_away(failed, folder, runs / "1-job");
  EXPECT_EQ(rests.phase, Phase::queued);
  EXPECT_TRUE(rests.rests);
  EXPECT_NE(rests.reason.find("mount the disk"), std::string::npos) << rests.reason;
  EXPECT_EQ(unless_away({Phase::finished, "done"}, folder, runs / "1-job").phase, Phase::finished);
  spec::JobOptions job;
  EXPECT_THROW(made_run(runs / "1-job", job), Error);
  EXPECT_FALSE(fs::exists(runs)) << "it was made anew";
  fs::create_directory(runs);
  EXPECT_EQ(unless_away(failed, folder, runs / "1-job").reason, failed.reason);
  EXPECT_EQ(made_run(runs / "1-job", job).name(), "1-job");
}

}  // namespace
}  // namespace ductile::cluster
