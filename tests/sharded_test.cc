// Jobs whose update is spread over their workers, started as a user does: the final weights are
// those of one process that does all of it, bit for bit, whatever happens on the way.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "elastic_programs.h"

namespace ductile::testing {
namespace {

using std::chrono::milliseconds;

class Sharded : public SmallJob {
 protected:
  Sharded() {
    use_gpt();
    sets_.insert(sets_.end(), {"model.dim=64", "optimizer.name=lamb", "optimizer.clip_norm=1",
                               "train.log_every=2", "train.max_steps=80"});
  }
  Program start_sharded(const fs::path& run, std::vector<std::string> more) {
    more.insert(more.end(), {"--set", "train.shard_optimizer=true"});
    return start(run, more);
  }
};

TEST_F(Sharded, AnyNumberOfWorkersGivesTheBitsOfOneProcess) {
  const std::string weights = expected();
  for (const char* n : all_sizes() ? std::vector{"1", "2", "3", "8"} : std::vector{"2", "3"}) {
    const fs::path run = root_.path() / n;
    ASSERT_EQ(start_sharded(run, {"--workers", n}).wait(), 0) << read_file(log_);
    EXPECT_EQ(model_of(run), weights) << n << " workers";
  }
}

TEST_F(Sharded, ALostWorkerIsReplacedFromTheSecondCopies) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run";
  Program job = start_sharded(run, {"--workers", "3"});
  EXPECT_GT(kill_workers(job, run, 5, 5, milliseconds(300)), 0);
  EXPECT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_EQ(model_of(run), weights);
}

TEST_F(Sharded, WithoutCopiesItGoesBackToTheCheckpoint) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run";
  Program job = start_sharded(run, {"--workers", "3", "--set", "train.shard_copies=1"});
  EXPECT_GT(kill_workers(job, run, 3, 5, milliseconds(300)), 0);
  EXPECT_EQ(job.wait(), 0) << read_file(log_);
  EXPECT_EQ(model_of(run), weights);
}

// The leader alone writes the model, when all others are done already.
TEST_F(Sharded, AModelThatCannotBeWrittenIsTriedAgainAndHoldsUpNobodyForEver) {
  const std::string weights = expected();
  const fs::path run = root_.path() / "run";
  Program job = start_sharded(run, {"--workers", "3", "--set", "train.shard_copies=1"});
  ASSERT_TRUE(wait_until_it_steps(job, run)) << read_file(log_);
  const fs::path in_the_way = run / "model.safetensors" / "x";
  fs::create_directories(in_the_way);
  while (job.running() &&
         read_file(run / "events.jsonl").find("model.safetensors") == std::string::npos)
    std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(job.running()) << "nobody noted that the model could not be written";
  fs::remove_all(in_the_way.parent_path());
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
