// Jobs of several workers, started as a user does: whatever their number, and whoever is killed on
// the way, the final weights are those of one undisturbed process, bit for bit.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "elastic_programs.h"

namespace ductile::testing {
namespace {

using std::chrono::milliseconds;

// By model.
class Elastic : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "gpt") {
      std::string tokens;  // little-endian words below 64, with something to learn
      for (int i = 0, state = 1; i < 40000; ++i) {
        state = (state * 5 + i % 7) % 64;
        tokens += {static_cast<char>(state), 0};
      }
      write_file_atomic(root_.path() / "train.bin", tokens);
      write_file_atomic(root_.path() / "test.bin", tokens.substr(0, 4096));
      sets_ = {"data.format=tokens",
               "data.path=" + (root_.path() / "train.bin").string(),
               "data.test_path=" + (root_.path() / "test.bin").string(),
               "data.sequence_length=32",
               "model.name=gpt",
               "model.layers=2",
               "model.heads=2",
               "model.dim=32",
               "model.vocab_size=64",
               "optimizer.name=adamw",
               "optimizer.lr=0.003",
               "train.batch_size=16"};
    } else {
      sets_ = {"augment.pad=2"};
      // Groups of four virtual ranks, which three workers cut: they meet in every batch norm.
      if (std::string(GetParam()) == "batch_norm_groups") {
        sets_.insert(sets_.end(), {"train.bn_group=4", "train.max_steps=60", "train.log_every=2"});
      }
    }
  }

  Program start(const fs::path& run, const std::vector<std::string>& more) {
    return Program(train(run, more, sets_), log_);
  }
  // The weights of one process, with as many threads as there are cores.
  std::string expected() {
    EXPECT_EQ(start(root_.path() / "one", {}).wait(), 0) << read_file(log_);
    return model_of(root_.path() / "one");
  }
  int command(const std::vector<std::string>& words) {
    return Program(ductile(words), log_).wait();
  }
  // Kills `count` workers at random times, once the job steps.
  int kill_workers(Program& job, const fs::path& run, int count, uint64_t seed) {
    Rng rng(seed);
    int kills = 0;
    while (job.running()) {
      std::this_thread::sleep_for(milliseconds(200 + rng.below(500)));
      if (kills >= count || !fs::exists(run / "metrics.jsonl")) continue;
      const std::vector<pid_t> workers = workers_of(run);
      if (workers.empty()) continue;
      ::kill(workers[rng.below(static_cast<uint32_t>(workers.size()))], SIGKILL);
      ++kills;
    }
    return kills;
  }

  TempFolder root_;
  fs::path log_ = root_.path() / "log";
  std::vector<std::string> sets_;
};

INSTANTIATE_TEST_SUITE_P(, Elastic, ::testing::Values("resnet8", "batch_norm_groups", "gpt"),
                         [](const auto& info) { return std::string(info.param); });

class ElasticOnce : public Elastic {};  // for what does not depend on the model
INSTANTIATE_TEST_SUITE_P(, ElasticOnce, ::testing::Values("gpt"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Elastic, AnyNumberOfWorkersGivesTheBitsOfOneProcess) {
  const std::string weights = expected();
  // A worker takes a second or two of a core to start.
  const std::vector<const char*> numbers = std::string(GetParam()) == "batch_norm_groups"
                                               ? std::vector{"3", "8"}
                                               : std::vector{"2", "3", "4", "8"};
  for (const char* n : numbers) {
    const fs::path run = root_.path() / n;
    ASSERT_EQ(start(run, {"--workers", n}).wait(), 0) << read_file(log_);
    EXPECT_EQ(model_of(run), weights) << n << " workers";
  }
}

// Faster sums depend on the number of workers, but on nothing else.
TEST_P(ElasticOnce, FastReductionRepeatsItselfForTheSameNumberOfWorkers) {
  for (const char* name : {"a", "b"}) {
    Program job = start(root_.path() / name, {"--workers", "3", "--set", "train.reduction=fast"});
    ASSERT_EQ(job.wait(), 0) << read_file(log_);
  }
  EXPECT_EQ(model_of(root_.path() / "a"), model_of(root_.path() / "b"));
}

TEST_P(Elastic, KilledWorkersChangeNothing) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "killed";
  Program job = start(run, {"--workers", "3"});
  const int kills = kill_workers(job, run, 10, 3);
  EXPECT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_GT(kills, 0) << read_file(log_);
  RecordProperty("kills", kills);
  EXPECT_EQ(model_of(run), weights);
  EXPECT_TRUE(workers_of(run).empty());
}

TEST_P(ElasticOnce, ResizedPreemptedMovedAndResumedItIsTheSameJob) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run", moved = root_.path() / "elsewhere" / "renamed";
  Program job = start(run, {"--workers", "2"});
  ASSERT_TRUE(wait_until_it_steps(job, run)) << read_file(log_);
  EXPECT_EQ(command({"resize", run.string(), "3"}), 0) << read_file(log_);
  EXPECT_EQ(command({"preempt", run.string()}), 0) << read_file(log_);
  EXPECT_EQ(job.wait(), 130) << read_file(log_);
  EXPECT_TRUE(workers_of(run).empty());
  fs::create_directory(moved.parent_path());
  fs::rename(run, moved);
  ASSERT_EQ(command({"-q", "train", "--resume", moved.string(), "--workers", "1"}), 0)
      << read_file(log_);
  EXPECT_EQ(model_of(moved), weights);
}

TEST_P(ElasticOnce, AKilledControllerIsReplacedWhileTheWorkersGoOn) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run";
  Program job = start(run, {"--workers", "2"});
  ASSERT_TRUE(wait_until_it_steps(job, run)) << read_file(log_);
  job.kill();
  const std::vector<pid_t> before = workers_of(run);
  EXPECT_EQ(before.size(), 2u);
  job = Program(ductile({"-q", "train", "--resume", run.string()}), log_);
  std::this_thread::sleep_for(milliseconds(500));
  if (job.running()) {
    EXPECT_EQ(workers_of(run), before) << "workers were replaced for nothing";
  }
  EXPECT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_EQ(model_of(run), weights);
  EXPECT_TRUE(workers_of(run).empty());
}

}  // namespace
}  // namespace ductile::testing
