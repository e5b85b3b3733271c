// Jobs whose update is spread over their workers, started as a user does: the final weights are
// those of one process that does all of it, bit for bit, whatever happens on the way.
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

class Sharded : public ::testing::Test {
 protected:
  Sharded() {
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
             "model.dim=64",
             "model.vocab_size=64",
             "optimizer.name=lamb",
             "optimizer.lr=0.003",
             "optimizer.clip_norm=1",
             "train.batch_size=16",
             "train.log_every=2",
             "train.max_steps=80"};
  }
  Program start(const fs::path& run, const std::vector<std::string>& more) {
    return Program(train(run, more, sets_), log_);
  }
  Program start_sharded(const fs::path& run, std::vector<std::string> more) {
    more.insert(more.end(), {"--set", "train.shard_optimizer=true"});
    return start(run, more);
  }
  std::string expected() {
    EXPECT_EQ(start(root_.path() / "one", {}).wait(), 0) << read_file(log_);
    return model_of(root_.path() / "one");
  }
  int command(const std::vector<std::string>& words) {
    return Program(ductile(words), log_).wait();
  }
  int kill_workers(Program& job, const fs::path& run, int count) {
    Rng rng(5);
    int kills = 0;
    while (job.running()) {
      std::this_thread::sleep_for(milliseconds(300 + rng.below(500)));
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

TEST_F(Sharded, AnyNumberOfWorkersGivesTheBitsOfOneProcess) {
  const std::string weights = expected();
  for (const char* n : {"1", "2", "3", "8"}) {
    const fs::path run = root_.path() / n;
    ASSERT_EQ(start_sharded(run, {"--workers", n}).wait(), 0) << read_file(log_);
    EXPECT_EQ(model_of(run), weights) << n << " workers";
  }
}

TEST_F(Sharded, ALostWorkerIsReplacedFromTheSecondCopies) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run";
  Program job = start_sharded(run, {"--workers", "3"});
  EXPECT_GT(kill_workers(job, run, 5), 0);
  EXPECT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_EQ(model_of(run), weights);
}

TEST_F(Sharded, WithoutCopiesItGoesBackToTheCheckpoint) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run";
  Program job = start_sharded(run, {"--workers", "3", "--set", "train.shard_copies=1"});
  EXPECT_GT(kill_workers(job, run, 3), 0);
  EXPECT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_EQ(model_of(run), weights);
}

TEST_F(Sharded, ResizedPreemptedAndResumedItIsTheSameJob) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run";
  Program job = start_sharded(run, {"--workers", "3", "--set", "train.shard_copies=1"});
  ASSERT_TRUE(wait_until_it_steps(job, run)) << read_file(log_);
  EXPECT_EQ(command({"resize", run.string(), "2"}), 0) << read_file(log_);
  EXPECT_EQ(command({"resize", run.string(), "4"}), 0) << read_file(log_);
  EXPECT_EQ(command({"preempt", run.string()}), 0) << read_file(log_);
  EXPECT_EQ(job.wait(), 130) << read_file(log_);
  // Checkpoints are whole: any number of workers goes on with one, also of a job that no longer
  // shards anything.
  std::string job_file = read_file(run / "job.toml");
  const std::string on = "shard_optimizer = true";
  ASSERT_NE(job_file.find(on), std::string::npos);
  job_file.replace(job_file.find(on), on.size(), "shard_optimizer = false");
  write_file_atomic(run / "job.toml", job_file);
  ASSERT_EQ(command({"-q", "train", "--resume", run.string(), "--workers", "2"}), 0)
      << read_file(log_);
  EXPECT_EQ(model_of(run), weights);
}

}  // namespace
}  // namespace ductile::testing
