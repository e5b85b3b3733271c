// The end of a job whose state lies by stage: no worker gets all of it, and nothing shows that.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/run/diary.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/local_cluster.h"
#include "ductile/train/testing/sample_optimizer.h"
#include "ductile/train/testing/stage_jobs.h"

namespace ductile::train {
namespace {

using testing::LocalCluster;
using testing::make_halving_optimizer;
using testing::OneRun;
using testing::sharded_job;
using testing::small_job;
using testing::weights_of;
using Json = nlohmann::json;

// What a run leaves behind.
struct LeftBehind {
  std::string digest, weights_digest;  // as the end of the run tells them
  std::string saved;                   // the digest of the newest checkpoint
  std::string model;                   // the file of the weights
  int64_t parts = 0;                   // of the newest checkpoint
  std::set<int64_t> may_have;          // so many, if nobody was lost
};

// How many parts a save by these workers has, as the event of their first step tells of them: of
// each, or one, by a worker that holds all. If the first one does, it is that.
std::set<int64_t> possible_parts(const spec::JobOptions& job, const Json& members) {
  std::vector<int64_t> cut = {0};
  for (const Json& member : members) cut.push_back(member.at("ranks").at(1));
  Replica replica(job);
  const Replica::Blocks all{{0, replica.shards().num_blocks()}};
  const auto held = replica.shards().spread(cut).held;
  std::set<int64_t> out;
  if (held.front() != all) out.insert(std::ssize(members));
  if (std::ranges::find(held, all) != held.end()) out.insert(1);
  return out;
}

using Prepare = std::function<void(const run::RunFolder&)>;

LeftBehind train_on(int64_t workers, const spec::JobOptions& job, const Recipe& recipe,
                    const Prepare& prepare = {}) {
  const OneRun run(job);
  if (prepare) prepare(run.folder);
  {
    LocalCluster cluster(run.folder, job, recipe);
    cluster.start(workers);
    EXPECT_EQ(cluster.finish().phase, control::Phase::finished);
  }
  LeftBehind out;
  run::for_each_diary_line(run.folder.events_file(), [&](const Json& line) {
    const std::string kind = line.value("kind", "");
    if (kind == "checkpoint") out.parts = line.value("parts", 1);
    if (kind == "memory") out.may_have = possible_parts(job, line.at("members"));
    if (kind != "end") return;
    out.digest = line.value("digest", "none");
    out.weights_digest = line.value("weights_digest", "none");
  });
  out.saved = run.digest();
  out.model = read_file(run.folder.model_file());
  return out;
}

LeftBehind train_on(int64_t workers, const spec::JobOptions& job) {
  return train_on(workers, job, recipe_of(job));
}

void expect_same(const LeftBehind& got, const LeftBehind& want, const std::string& what) {
  EXPECT_EQ(got.digest, want.digest) << what;
  EXPECT_EQ(got.weights_digest, want.weights_digest) << what;
  EXPECT_EQ(got.saved, got.digest) << what;
  EXPECT_TRUE(got.model == want.model) << what;
}

// Rules with other weights to evaluate, averages, running statistics, tensors of more than a
// message, and matrices of which no worker holds all.
std::vector<spec::JobOptions> jobs() {
  std::vector<spec::JobOptions> out(5, sharded_job());
  out[0].train.shard_copies = 1;
  out[1].train.ema_decay = 0.9;
  out[2].optimizer.name = "schedule_free";
  out[2].train.shard_copies = 1;
  out[3].model.hidden = {512, 48};
  out[3].train.precision = "bf16";
  out[4].train.pipelined.tensor = {2, 2};
  out[4].train.shard_copies = 1;
  out.push_back(small_job("resnet8", 4));
  out.back().train.shard_optimizer = true;
  out.back().train.shard_copies = 1;
  out.back().train.ema_decay = 0.9;
  return out;
}

// A worker that is alone has all of the state, and goes the way of jobs without stages.
TEST(LastSave, OfPartsHasTheBitsOfOneWorkersSave) {
  int in_parts = 0;
  for (const spec::JobOptions& job : jobs()) {
    const LeftBehind alone = train_on(1, job), together = train_on(4, job);
    const std::string what = job.model.name + ", " + job.optimizer.name;
    EXPECT_EQ(alone.parts, 1) << what;
    EXPECT_TRUE(together.may_have.contains(together.parts)) << what << ": " << together.parts;
    in_parts += together.parts > 1;
    expect_same(together, alone, what);
  }
  EXPECT_GT(in_parts, 2);  // of a tiny model all hold everything
}

// Hooks of all workers' optimisers, called when one is asked for weights to evaluate or to deploy.
Recipe halving_recipe(const spec::JobOptions& job, std::function<void()> asked) {
  return [job, asked] {
    Ingredients given = complete({}, job);
    given.make_optimizer = [job, asked](const optim::ParamLayout& layout) {
      return make_halving_optimizer(job, layout, [asked](int) { asked(); });
    };
    return given;
  };
}

// Evaluated and saved at its end alone, where all calls of the hooks come from.
spec::JobOptions job_with_one_save(int64_t copies) {
  spec::JobOptions job = sharded_job();
  job.train.shard_copies = copies;
  job.train.eval_every_epochs = 0;
  job.checkpoint.every_steps = 0;
  return job;
}

// Before the parts are written and after that, while weights travel to the leader; the leader and
// the others.
TEST(LastSave, AWorkerThatIsKilledMeanwhileChangesNoBit) {
  std::atomic<int> lost = 0;
  for (const int64_t copies : {2, 1}) {
    const spec::JobOptions job = job_with_one_save(copies);
    const LeftBehind want = train_on(4, job, halving_recipe(job, [] {}));
    EXPECT_TRUE(want.may_have.contains(want.parts)) << want.parts;
    for (int64_t fatal = 1; fatal <= 9; ++fatal) {  // three workers have something, and three calls
      std::atomic<int64_t> call = 0;
      const Recipe recipe = halving_recipe(job, [&] {
        if (++call != fatal) return;
        ++lost;
        LocalCluster::die();
      });
      expect_same(train_on(4, job, recipe), want, "killed at call " + std::to_string(fatal));
    }
  }
  EXPECT_GT(lost.load(), 12);
}

TEST(LastSave, IsLeftOutWithTheSameDigestsAndLeavesNothingOnTheDisk) {
  spec::JobOptions job = job_with_one_save(1);
  const LeftBehind want = train_on(4, job);
  job.checkpoint.at_end = false;
  const OneRun run(job);
  run.go_on(job, 4, 8, /*to_its_end=*/true);
  std::string digest, weights_digest;
  run::for_each_diary_line(run.folder.events_file(), [&](const Json& line) {
    if (line.value("kind", "") != "end") return;
    digest = line.value("digest", "none");
    weights_digest = line.value("weights_digest", "none");
  });
  EXPECT_EQ(digest, want.digest);
  EXPECT_EQ(weights_digest, want.weights_digest);
  EXPECT_TRUE(read_file(run.folder.model_file()) == want.model);
  for (const char* place : {"chunks", "pending", "tmp"}) {
    for (const auto& entry : fs::recursive_directory_iterator(run.folder.checkpoints() / place))
      EXPECT_FALSE(entry.is_regular_file()) << entry.path();
  }
}

// That of a preemption goes the same way.
TEST(LastSave, BeforeAPreemptionIsMadeOfPartsToo) {
  for (const int64_t copies : {1, 2}) {
    spec::JobOptions job = sharded_job();
    job.train.shard_copies = copies;
    job.train.epochs = 1'000'000;
    job.checkpoint.every_steps = 0;
    const OneRun run(job);
    for (const int64_t workers : {4, 3}) {
      run.go_on(job, workers, workers == 4 ? 3 : 12, /*to_its_end=*/false);
      int64_t parts = 0;
      std::set<int64_t> possible;
      run::for_each_diary_line(run.folder.events_file(), [&](const Json& line) {
        const std::string kind = line.value("kind", "");
        if (kind == "checkpoint") parts = line.value("parts", 1);
        if (kind == "memory") possible = possible_parts(job, line.at("members"));
      });
      EXPECT_TRUE(possible.contains(parts))
          << parts << " parts, " << copies << " copies, " << workers << " workers";
    }
    const auto saved = run.newest(job);
    Replica undisturbed(job);
    undisturbed.host_all();
    std::vector<float> sum(static_cast<size_t>(undisturbed.vector_size()));
    while (undisturbed.step() < saved->step()) {
      undisturbed.compute(undisturbed.num_ranks(), sum);
      undisturbed.apply(sum);
    }
    EXPECT_EQ(weights_of(*saved), weights_of(undisturbed)) << copies << " copies";
  }
}

TEST(LastSave, WhereAWorkersDiskRefusesItsPartTheLeaderSavesAll) {
  const spec::JobOptions job = job_with_one_save(1);
  const LeftBehind want = train_on(4, job);
  const LeftBehind got = train_on(4, job, recipe_of(job), [](const run::RunFolder& folder) {
    fs::create_directories(folder.checkpoints() / "pending" / "step-000000000008.w2-part.json");
  });
  EXPECT_TRUE(want.may_have.contains(want.parts)) << want.parts;
  EXPECT_EQ(got.parts, 1);
  expect_same(got, want, "a part that cannot be written");
}

// Its first attempt finds a full device under the temporary name of the file, and takes the name
// away, as of any file that is not finished. So the second one finds nothing in its way, whoever
// makes it, and however many generations there were before.
TEST(LastSave, WhereTheModelCannotBeWrittenTheLeaderTriesAgain) {
  const spec::JobOptions job = job_with_one_save(1);
  const LeftBehind want = train_on(4, job, halving_recipe(job, [] {}));
  EXPECT_TRUE(want.may_have.contains(want.parts)) << want.parts;
  fs::path full;
  std::atomic<int> asked_again = 0;
  const Recipe recipe = halving_recipe(job, [&] {
    if (!fs::is_symlink(full)) ++asked_again;
  });
  const LeftBehind got = train_on(4, job, recipe, [&](const run::RunFolder& folder) {
    full = folder.model_file();
    full += ".tmp" + std::to_string(::getpid());
    fs::create_symlink("/dev/full", full);
  });
  EXPECT_GT(asked_again.load(), 0) << "nobody was refused, or nobody tried again";
  EXPECT_EQ(got.parts, 1);
  expect_same(got, want, "a model that cannot be written at first");
}

}  // namespace
}  // namespace ductile::train
