#include <atomic>
#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <new>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ops/empty.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/link/saved_state.h"
#include "ductile/run/diary.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/progress.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/testing/local_cluster.h"
#include "ductile/train/workers.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

// A run small enough to repeat many times: a small net on part of the embedded digits.
spec::JobOptions small_job() {
  spec::JobOptions job;
  job.data.train_limit = 640;
  job.data.test_limit = 200;
  job.model.name = "mlp";
  job.model.hidden = {32};
  job.optimizer.lr = 0.05;
  job.train.epochs = 2;
  job.train.batch_size = 64;
  job.train.log_every = 3;
  job.checkpoint.every_seconds = 0;
  return job;
}

struct TestRun {
  TempFolder folder;
  Json summary;  // the run's last `end` event

  // Trains to the run's end, as far as it gets; an error of the job is thrown.
  std::string start(spec::JobOptions job, bool resume = false) {
    if (!resume) {
      const run::RunFolder made = run::RunFolder::create(folder.path(), job.name, "");
      write_file_atomic(made.job_file(), OptionSet(job).to_toml());
    }
    const auto run = run::RunFolder::open(folder.path() / "latest");
    const run::RunLock lock(run.path(), run::RunLock::kLocal);
    const link::JobEnd end = train_here(lock, {.folder = run, .job = job});
    if (end.phase == control::Phase::failed) throw Error(end.error_code, end.reason);
    run::for_each_diary_line(run.events_file(), [&](const Json& line) {
      if (line.at("kind") == "end") summary = line;
    });
    return summary.at("status");
  }
  fs::path path() const { return run::RunFolder::open(folder.path() / "latest").path(); }
  std::string weights() const { return read_file(path() / "model.safetensors"); }
  std::vector<Json> metrics() const {
    std::vector<Json> lines;
    run::for_each_diary_line(path() / "metrics.jsonl",
                             [&](const Json& line) { lines.push_back(line); });
    for (Json& line : lines) {
      for (const char* timing : {"time", "seconds", "samples_per_second", "generation"})
        line.erase(timing);
    }
    return lines;
  }
};

TEST(WorkerLoop, FillsTheRunDirectoryAndLearns) {
  TestRun run;
  spec::JobOptions job = small_job();
  job.train.epochs = 6;
  EXPECT_EQ(run.start(job), "done");
  EXPECT_EQ(run.summary.at("step"), 60);
  EXPECT_GT(run.summary.at("final").at("accuracy").get<double>(), 0.5);
  for (const char* name : {"metrics.jsonl", "events.jsonl", "report.html", "model.safetensors"}) {
    EXPECT_TRUE(fs::exists(run.path() / name)) << name;
  }
}

TEST(WorkerLoop, TheDigitsAreTooHardForALinearModelAndNotForTheDefaultOne) {
  TestRun linear, standard;
  spec::JobOptions job;
  job.checkpoint.every_seconds = 0;
  job.train.epochs = 1;
  standard.start(job);
  EXPECT_GT(standard.summary.at("final").at("accuracy"), 0.98);
  job.model.name = "mlp";
  job.model.hidden = {};
  job.optimizer.lr = 0.02;
  job.train.epochs = 8;
  linear.start(job);
  EXPECT_GT(linear.summary.at("best").at("accuracy"), 0.70);  // it did learn
  EXPECT_LT(linear.summary.at("best").at("accuracy"), 0.93);
}

TEST(WorkerLoop, EqualSeedsGiveEqualBitsAndOthersDoNot) {
  TestRun a, b, c;
  spec::JobOptions job = small_job();
  a.start(job);
  b.start(job);
  job.seed = 2;
  c.start(job);
  EXPECT_EQ(a.weights(), b.weights());
  EXPECT_NE(a.weights(), c.weights());
}

// Stopping at any step and resuming changes neither weights nor metric lines.
TEST(WorkerLoop, AResumedRunEqualsAnUndisturbedOneToTheBit) {
  for (const char* optimizer : {"sgd", "adamw", "lamb"}) {
    for (const int64_t virtual_ranks : {1, 4}) {
      spec::JobOptions job = small_job();
      job.model.name = "cnn";
      job.augment.pad = 2;
      job.optimizer.name = optimizer;
      job.optimizer.lr = 0.01;
      job.train.virtual_ranks = virtual_ranks;
      job.train.ema_decay = 0.9;
      job.train.max_steps = 14;
      job.data.train_limit = 512;
      TestRun whole;
      whole.start(job);
      TestRun parts;
      job.checkpoint.every_steps = 5;
      job.checkpoint.at_end = false;
      job.train.max_steps = 14;
      parts.start(job);  // leaves the checkpoint of step 10
      parts.start(job, true);
      EXPECT_EQ(whole.weights(), parts.weights()) << optimizer << " " << virtual_ranks;
      EXPECT_EQ(whole.metrics(), parts.metrics()) << optimizer << " " << virtual_ranks;
    }
  }
}

// Without batch norm, V virtual ranks compute the mean gradient of the same global batch.
TEST(WorkerLoop, VirtualRanksAreGradientAccumulationOverTheSameSamples) {
  TestRun one, four;
  spec::JobOptions job = small_job();
  one.start(job);
  job.train.virtual_ranks = 4;
  four.start(job);
  EXPECT_NEAR(one.summary.at("final").at("loss"), four.summary.at("final").at("loss"), 1e-4);
  EXPECT_NE(one.weights(), four.weights()) << "the order of the sums differs, so bits do";
}

TEST(WorkerLoop, HalfPrecisionFollowsFullPrecision) {
  spec::JobOptions job = small_job();
  job.model.name = "cnn";
  TestRun full;
  full.start(job);
  for (const char* precision : {"bf16", "fp16"}) {
    job.train.precision = precision;
    TestRun half;
    half.start(job);
    EXPECT_NEAR(full.summary.at("final").at("loss"), half.summary.at("final").at("loss"), 0.15)
        << precision;
  }
}

TEST(WorkerLoop, OverflowInFp16SkipsStepsAndLowersTheScale) {
  spec::JobOptions job = small_job();
  job.train.precision = "fp16";
  job.train.loss_scale = 16777216;
  TestRun run;
  run.start(job);
  EXPECT_GT(run.summary.at("skipped_steps").get<int>(), 0);
  EXPECT_LT(run.summary.at("skipped_steps").get<int>(), 15);
}

TEST(WorkerLoop, ATargetEndsTheRunAndIsReportedWithItsCost) {
  spec::JobOptions job = small_job();
  job.train.epochs = 50;
  job.target = {"accuracy", 0.5};
  TestRun run;
  EXPECT_EQ(run.start(job), "target_reached");
  EXPECT_LT(run.summary.at("step").get<int>(), 500);
  bool found = false;
  for (const Json& event : run::read_json_lines(run.path() / "events.jsonl")) {
    if (event.at("kind") != "target") continue;
    found = true;
    EXPECT_GT(event.at("cost").at("core_seconds").get<double>(), 0);
    EXPECT_EQ(event.at("samples").get<int64_t>(), event.at("step").get<int64_t>() * 64);
  }
  EXPECT_TRUE(found);
}

// Also what workers cost that are gone: their controller knows it, and this process does not.
TEST(WorkerLoop, ATargetAndACheckpointHaveTheCostOfAllWorkers) {
  constexpr double kOthers = 1e6;
  spec::JobOptions job = small_job();
  TestRun run;
  job.checkpoint.every_steps = 7;
  job.checkpoint.at_end = false;
  EXPECT_EQ(run.start(job), "done");  // leaves the checkpoint of step 14 of 20
  const fs::path state = link::state_file(run.path());
  Json saved = link::read_state(state).value();
  saved["spent"]["core_seconds"] = kOthers;
  write_file_atomic(state, link::sealed(saved));
  job.checkpoint.at_end = true;
  job.target = {"accuracy", 0.01};
  EXPECT_EQ(run.start(job, true), "target_reached");
  const auto core_seconds = [](const Json& cost) { return cost.at("core_seconds").get<double>(); };
  EXPECT_GT(core_seconds(run.summary.at("cost")), kOthers);
  int targets = 0;
  for (const Json& event : run::read_json_lines(run.path() / "events.jsonl")) {
    if (event.at("kind") != "target") continue;
    ++targets;
    EXPECT_GT(core_seconds(event.at("cost")), kOthers);
  }
  EXPECT_EQ(targets, 1);
  const fs::path checkpoints = run.path() / "checkpoints";
  const ckpt::Checkpoint last =
      ckpt::Checkpoint::open(checkpoints, ckpt::list(checkpoints).front().step);
  EXPECT_GT(core_seconds(last.state().at("cost")), kOthers);
}

std::string error_of(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  return "no error";
}

TEST(WorkerLoop, DivergenceIsAnErrorThatNamesStepAndRemedy) {
  spec::JobOptions job = small_job();
  job.optimizer.lr = 1e30;
  job.optimizer.weight_decay = 1;
  TestRun run;
  const std::string text = error_of([&] { run.start(job); }, ErrorCode::conflict);
  EXPECT_NE(text.find("optimizer.lr"), std::string::npos) << text;
}

TEST(WorkerLoop, ResumingUnderOptionsThatChangeTheResultIsRefused) {
  spec::JobOptions job = small_job();
  TestRun run;
  run.start(job);
  job.train.log_every = 5;
  job.checkpoint.keep = 7;
  EXPECT_EQ(error_of([&] { run.start(job, true); }, ErrorCode::internal), "no error");
  job.optimizer.lr = 0.2;
  const std::string text = error_of([&] { run.start(job, true); }, ErrorCode::conflict);
  EXPECT_NE(text.find("optimizer.lr"), std::string::npos) << text;
}

TEST(WorkerLoop, ABatchLargerThanTheDataIsRefused) {
  spec::JobOptions job = small_job();
  job.train.batch_size = 1000;
  TestRun run;
  const std::string text = error_of([&] { run.start(job); }, ErrorCode::invalid_argument);
  EXPECT_NE(text.find("640"), std::string::npos) << text;
}

TEST(WorkerLoop, SaysOnceThatASearchHasNoRoomToCompareTrials) {
  spec::JobOptions job = small_job();
  job.train.batch_size = 32;
  job.tune.online = true;  // half an epoch of trials, and the shortest one has that
  const TempFolder place;
  const auto folder = run::RunFolder::create(place.path(), job.name, OptionSet(job).to_toml());
  const fs::path told = place.path() / "told";
  const int fd = ::open(told.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ASSERT_GE(fd, 0);
  const run::RunLock lock(folder.path(), run::RunLock::kLocal);
  for (int i = 0; i < 2; ++i) {  // the second one goes on with it
    const link::JobEnd end = train_here(lock, {.folder = folder, .job = job, .progress_fd = fd});
    EXPECT_EQ(end.phase, control::Phase::finished) << end.reason;
  }
  ::close(fd);
  std::vector<run::Message> warnings;
  std::istringstream lines(read_file(told));
  for (std::string line; std::getline(lines, line);) {
    const auto known = run::decode(line);
    const auto* message = known ? std::get_if<run::Message>(&*known) : nullptr;
    if (message != nullptr && message->level == "warning") warnings.push_back(*message);
  }
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].text.find("tune.budget = 0.25"), std::string::npos) << warnings[0].text;
}

TEST(WorkerLoop, ADamagedNewestCheckpointIsPassedOverForTheOneBefore) {
  spec::JobOptions job = small_job();
  job.checkpoint.every_steps = 4;
  TestRun whole, damaged;
  whole.start(job);
  damaged.start(job);
  std::vector<fs::path> manifests;
  for (const auto& e : fs::directory_iterator(damaged.path() / "checkpoints" / "manifests")) {
    manifests.push_back(e.path());
  }
  std::ranges::sort(manifests);
  ASSERT_EQ(manifests.size(), 2u);
  std::ofstream(manifests.back(), std::ios::app) << "x";
  fs::remove(damaged.path() / "model.safetensors");
  damaged.start(job, true);
  EXPECT_EQ(whole.weights(), damaged.weights());
}

// As nothing else that may be thrown there does, it ended the process without a word, and the next
// one did the same.
TEST(WorkerLoop, NoMemoryWhileAWorkerLoadsIsAnErrorThatSaysSo) {
  const std::function<void()> refusals[] = {[] { throw std::bad_alloc(); },
                                            [] { at::empty({int64_t{1} << 55}); }};
  for (const auto& refuse : refusals) {
    spec::JobOptions job = small_job();
    const TempFolder place;
    const auto folder = run::RunFolder::create(place.path(), job.name, OptionSet(job).to_toml());
    const run::RunLock lock(folder.path(), run::RunLock::kLocal);
    const Recipe recipe = [&]() -> Ingredients {
      refuse();
      return {};
    };
    const link::JobEnd end = train_here(lock, {.folder = folder, .job = job, .recipe = recipe});
    EXPECT_EQ(end.phase, control::Phase::failed);
    EXPECT_FALSE(end.crashed);
    EXPECT_EQ(end.error_code, ErrorCode::unavailable) << end.reason;
    EXPECT_NE(end.reason.find("memory"), std::string::npos) << end.reason;
    EXPECT_NE(end.reason.find("start fewer workers on it"), std::string::npos) << end.reason;
  }
}

TEST(WorkerLoop, AWorkerWithoutMemoryToLoadLeavesTheOthersAtWork) {
  spec::JobOptions job = small_job();
  job.train.virtual_ranks = 2;
  job.train.threads = 1;
  TestRun alone;
  alone.start(job);
  const TempFolder place;
  const auto folder = run::RunFolder::create(place.path(), job.name, OptionSet(job).to_toml());
  std::atomic<int> begun = 0;
  const Recipe recipe = [&, own = recipe_of(job)] {
    if (begun++ == 1) throw std::bad_alloc();
    return own();
  };
  testing::LocalCluster cluster(folder, job, recipe);
  cluster.start(2);
  EXPECT_EQ(cluster.finish().phase, control::Phase::finished);
  EXPECT_GE(begun.load(), 2);
  EXPECT_EQ(read_file(folder.model_file()), alone.weights());
}

}  // namespace
}  // namespace ductile::train
