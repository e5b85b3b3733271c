// kill -9 of real workers at random moments: after any number of kills and resumes the final
// weights equal those of an undisturbed run, bit for bit.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/base/rng.h"
#include "ductile/run/diary.h"
#include "ductile/run/folder.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/tuning_cost.h"
#include "ductile/spec/job.h"

namespace ductile {
namespace {

// How often a worker is killed; each start takes a second or two.
int wanted_kills() {
  const char* text = std::getenv("DUCTILE_KILLS");
  return text != nullptr ? std::atoi(text) : 10;
}
const int kKills = wanted_kills();

pid_t start_worker(const fs::path& run) {
  std::vector<std::string> words = {DUCTILE_BINARY_DIR "/bin/ductile-worker", "--run",
                                    run.string()};
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

fs::path newest_manifest(const fs::path& run) {
  fs::path newest;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints" / "manifests", none)) {
    if (entry.path().extension() == ".json") newest = std::max(newest, entry.path());
  }
  return newest;
}

// Batch norm, momentum, moving averages, augmentation, virtual ranks: everything with a state.
spec::JobOptions short_job() {
  spec::JobOptions job;
  job.data.train_limit = 2048;
  job.data.test_limit = 256;
  job.model.name = "cnn";
  job.augment.pad = 2;
  job.optimizer.lr = 0.02;
  job.train.epochs = 50;
  job.train.max_steps = 500 + 50 * kKills;
  job.train.batch_size = 32;
  job.train.virtual_ranks = 2;
  job.train.ema_decay = 0.99;
  job.train.eval_every_epochs = 10;
  job.train.threads = 1;
  job.checkpoint.every_seconds = 0;
  job.checkpoint.every_steps = 7;
  return job;
}

fs::path make_run(const fs::path& root, spec::JobOptions job = short_job()) {
  const run::RunFolder folder = run::RunFolder::create(root, "short");
  write_file_atomic(folder.job_file(), OptionSet(job).to_toml());
  return folder.path();
}

TEST(KillAndResume, RandomKillsLeaveTheFinalWeightsBitEqual) {
  const TempFolder root;
  const fs::path whole = make_run(root.path()), killed = make_run(root.path());
  ASSERT_EQ(wait_for(start_worker(whole)), 0);

  // Most workers die a moment after they saved something new, so that the run moves on; every
  // fifth at any moment at all, start-up and restoring included.
  Rng rng(20260101);
  for (int kill = 0; kill < kKills; ++kill) {
    const fs::path before = newest_manifest(killed);
    const pid_t worker = start_worker(killed);
    double delay = rng.uniform(0, 0.06);
    if (rng.below(5) == 0) {
      delay = rng.uniform(0, 1.5);
    } else {
      while (newest_manifest(killed) == before && ::waitpid(worker, nullptr, WNOHANG) == 0) {
        sleep_for(0.002);
      }
    }
    sleep_for(delay);
    ASSERT_EQ(::kill(worker, SIGKILL), 0);
    ASSERT_TRUE(WIFSIGNALED(wait_for(worker))) << "the run was over after " << kill << " kills";
  }
  ASSERT_EQ(wait_for(start_worker(killed)), 0);
  EXPECT_EQ(read_file(whole / "model.safetensors"), read_file(killed / "model.safetensors"));

  // Each step counts once in the metrics, whatever was done twice.
  std::vector<int64_t> steps;
  run::for_each_diary_line(killed / "metrics.jsonl", [&](const nlohmann::json& line) {
    if (line.contains("train/loss")) steps.push_back(line.at("step"));
  });
  ASSERT_EQ(steps.size(), 50u + 5u * kKills);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<int64_t>(10 * (i + 1)));
}

// Of what has a state of its own: `saved` is a part of the checkpoints in which it is killed.
struct Row {
  const char *name, *saved;
  void (*choose)(spec::JobOptions& job);
};
const Row kRows[] = {
    {"muon", "optimizer/exp_avg/", [](spec::JobOptions& job) { job.optimizer.name = "muon"; }},
    // In the middle of a round of probes.
    {"lrtuner", "\"at\":", [](spec::JobOptions& job) { job.train.rate_control = "lrtuner"; }},
};

class KillAndResumeOf : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(, KillAndResumeOf, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(KillAndResumeOf, KillsLeaveTheFinalWeightsBitEqual) {
  const TempFolder root;
  spec::JobOptions job = short_job();
  job.train.max_steps = 200;
  GetParam().choose(job);
  const fs::path whole = make_run(root.path(), job), killed = make_run(root.path(), job);
  ASSERT_EQ(wait_for(start_worker(whole)), 0);
  for (int kill = 0; kill < 3; ++kill) {
    fs::path last = newest_manifest(killed);
    const pid_t worker = start_worker(killed);
    while (::waitpid(worker, nullptr, WNOHANG) == 0) {
      const fs::path now = newest_manifest(killed);
      if (now != last && read_file(now).find(GetParam().saved) != std::string::npos) break;
      last = now;
      sleep_for(0.002);
    }
    ASSERT_EQ(::kill(worker, SIGKILL), 0);
    ASSERT_TRUE(WIFSIGNALED(wait_for(worker))) << "the run was over after " << kill << " kills";
  }
  ASSERT_EQ(wait_for(start_worker(killed)), 0);
  EXPECT_EQ(read_file(whole / "model.safetensors"), read_file(killed / "model.safetensors"));
}

// The branches of an online tuner are in the checkpoints.
TEST(KillAndResume, TrialsThatAreKilledInTheMiddleLeaveTheFinalWeightsBitEqual) {
  const TempFolder root;
  spec::JobOptions job = short_job();
  job.data.train_limit = 1024;
  job.train.max_steps = 0;
  job.train.epochs = 4;
  job.optimizer.lr = 2e-4;
  job.tune.online = true;
  job.tune.budget = 2;
  job.tune.momentum = {0, 0.99};
  job.tune.batch_size = {16, 32};
  job.train.staleness = 2;
  job.tune.staleness = {0, 2};
  job.tune.options = {"train.label_smoothing:0:0.2", "optimizer.clip_norm:0.5:50"};
  const fs::path whole = make_run(root.path(), job), killed = make_run(root.path(), job);
  ASSERT_EQ(wait_for(start_worker(whole)), 0);
  int in_trials = 0, with_old_weights = 0;
  for (int kill = 0; kill < 6; ++kill) {
    const fs::path before = newest_manifest(killed);
    const pid_t worker = start_worker(killed);
    while (newest_manifest(killed) == before && ::waitpid(worker, nullptr, WNOHANG) == 0)
      sleep_for(0.002);
    sleep_for(0.01 * kill);
    ASSERT_EQ(::kill(worker, SIGKILL), 0);
    ASSERT_TRUE(WIFSIGNALED(wait_for(worker))) << "the run was over after " << kill << " kills";
    const std::string manifest = read_file(newest_manifest(killed));
    in_trials += manifest.find("branch/root/weights") != std::string::npos;
    with_old_weights += manifest.find("extra/staleness/") != std::string::npos;
  }
  EXPECT_GT(in_trials, 3);
  EXPECT_GT(with_old_weights, 0);
  ASSERT_EQ(wait_for(start_worker(killed)), 0);
  EXPECT_EQ(read_file(whole / "model.safetensors"), read_file(killed / "model.safetensors"));
  const auto chosen = [](const fs::path& run) {
    nlohmann::json out;
    run::for_each_diary_line(run / "events.jsonl", [&](const nlohmann::json& line) {
      if (line.at("kind") == "tune" && line.at("what") == "search_over") out = line.at("moves");
    });
    return out;
  };
  EXPECT_FALSE(chosen(whole).empty());
  EXPECT_EQ(chosen(killed), chosen(whole));
  // What was trained again counts once in samples, and in time as it passed.
  const auto cost = [](const fs::path& run) {
    std::vector<nlohmann::json> events;
    run::for_each_diary_line(run / "events.jsonl",
                             [&](const nlohmann::json& line) { events.push_back(line); });
    return run::tuning_json(events);
  };
  const nlohmann::json once = cost(whole), again = cost(killed);
  for (const char* key : {"searches", "trials", "samples", "samples_kept"})
    EXPECT_EQ(again.at(key), once.at(key)) << key;
  EXPECT_GT(once.at("samples"), once.at("samples_kept"));
  EXPECT_GT(once.at("core_seconds"), 0.0);
  EXPECT_GT(again.at("core_seconds"), 0.0);
}

TEST(KillAndResume, ATermSignalSavesTheStateAndEndsInOrder) {
  const TempFolder root;
  const fs::path run = make_run(root.path());
  const pid_t worker = start_worker(run);
  while (!fs::exists(run / "metrics.jsonl") || fs::file_size(run / "metrics.jsonl") == 0) {
    sleep_for(0.02);
  }
  ::kill(worker, SIGTERM);
  const int status = wait_for(worker);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_FALSE(fs::exists(run / "model.safetensors"));
  const auto events = run::read_json_lines(run / "events.jsonl");
  EXPECT_EQ(events.back().at("status"), "interrupted");
}

}  // namespace
}  // namespace ductile
