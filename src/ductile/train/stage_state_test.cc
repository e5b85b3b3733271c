// train.shard_optimizer in a job by stages: the state lies where it is read, with the same bits.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/files.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/shards.h"
#include "ductile/run/diary.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/stage_jobs.h"

namespace ductile::train {
namespace {

using testing::disturb_and_compare;
using testing::gpt_job;
using testing::OneRun;
using testing::overflowing;
using testing::run_serial;
using testing::save_together_and_compare;
using testing::sharded_job;
using testing::small_job;
using testing::weights_of;
using testing::with_lars;

TEST(StageState, AWorkerHoldsTheStateOfItsStagesAndACopyOfTheOnesBefore) {
  using Held = std::vector<Replica::Blocks>;
  spec::JobOptions job = sharded_job();
  const std::vector<int64_t> cut = {0, 1, 2, 3, 4}, fewer = {0, 2, 4};
  const auto held = [&](const std::vector<int64_t>& of) {
    return Replica(job).shards().spread(of).held;
  };
  EXPECT_EQ(held(cut), (Held{{{0, 7}}, {{0, 9}}, {{7, 9}}, {}}));
  job.train.shard_copies = 1;
  EXPECT_EQ(held(cut), (Held{{{0, 7}}, {{6, 9}}, {{8, 9}}, {}}));
  EXPECT_EQ(held(fewer), (Held{{{0, 9}}, {{8, 9}}}));
  job.train.pipelined.replicas = 2;  // of two stages: fc1 to fc3, and fc4
  EXPECT_EQ(held(cut), (Held{{{0, 9}}, {{8, 9}}, {{0, 9}}, {{8, 9}}}));
}

// With running statistics and their averages, on images.
spec::JobOptions normed_job() {
  spec::JobOptions job = small_job("resnet8", 4);
  job.train.shard_optimizer = true;
  job.train.shard_copies = 1;
  job.train.ema_decay = 0.9;
  return job;
}

TEST(StageState, WeightsThatAreNotHeldTakeNoMemory) {
  spec::JobOptions job = sharded_job();
  job.train.shard_copies = 1;
  Replica replica(job);
  const std::vector<float> before = weights_of(replica);
  parallel::ExchangeLayout layout{{0, 1, 2, 3, 4}, replica.vector_size()};
  layout.in_parts = true;
  replica.shards().enter(layout, /*rank=*/1);  // of the blocks 6 to 8
  replica.shards().hold(replica.shards().layout().held[1]);
  replica.tidy();
  const std::vector<float> after = weights_of(replica);
  constexpr size_t kBlock = optim::kBlockFloats;
  EXPECT_TRUE(std::equal(before.begin() + 6 * kBlock, before.end(), after.begin() + 6 * kBlock));
  const auto zeros = [](const std::vector<float>& of) {
    return std::all_of(of.begin() + kBlock, of.begin() + 5 * kBlock,
                       [](float x) { return x == 0; });
  };
  EXPECT_TRUE(zeros(after));
  EXPECT_FALSE(zeros(before));
}

// Rules with and without norms, whose matrices may be cut or not; averages, half precision, steps
// that overflow; one pipeline and two.
std::vector<spec::JobOptions> sharded_jobs() {
  std::vector<spec::JobOptions> jobs(5, sharded_job());
  jobs[1].optimizer.name = "lamb";
  jobs[1].optimizer.clip_norm = 1;
  jobs[1].train.ema_decay = 0.9;
  jobs[1].train.shard_copies = 1;
  jobs[2].train.precision = "bf16";
  jobs[2].train.pipelined.replicas = 2;
  jobs[3].optimizer.name = "muon";
  jobs[3].train.shard_copies = 1;
  jobs[4].optimizer.name = "schedule_free";
  jobs[4].train.pipelined.stages = {"fc1", "fc2", "fc3", "fc4"};
  jobs[4].train.shard_copies = 1;
  for (const int64_t replicas : {1, 2}) {
    jobs.push_back(with_lars(sharded_job()));
    jobs.back().train.pipelined.replicas = replicas;
    jobs.back().train.shard_copies = 1;
    jobs.back().optimizer.clip_norm = replicas == 1 ? 1 : 0;
  }
  jobs.push_back(overflowing(sharded_job()));
  jobs.back().train.shard_copies = 1;
  jobs.push_back(normed_job());
  return jobs;
}

// Before it knows its part it has none, and then that alone; the bits are those of a whole model.
TEST(StageState, AWorkerBeginsWithTheFirstWeightsOfItsPart) {
  for (const spec::JobOptions& job : sharded_jobs()) {
    const std::string what = job.model.name + ", " + job.optimizer.name;
    Replica whole(job), blank(job, recipe_of(job), /*may_be_blank=*/true);
    const auto is_zero = [](float x) { return x == 0; };
    EXPECT_TRUE(std::ranges::all_of(blank.state().flat.weights(), is_zero)) << what;
    parallel::ExchangeLayout layout{{0, 1, 2, 3, 4}, blank.vector_size()};
    layout.in_parts = !blank.shards().spread(layout.cut).whole;
    for (const int rank : {1, 2}) {
      parallel::ShardedUpdate& shards = blank.shards();
      shards.enter(layout, rank);
      shards.hold(shards.layout().held[static_cast<size_t>(rank)]);
      blank.make_blanks();
      for (const parallel::BlockRange& held : shards.held()) {
        const parallel::FloatRange range = shards.floats(held);
        const auto is_same = [&](auto have, auto want) {
          return have.empty() || std::equal(have.begin() + range.begin, have.begin() + range.end,
                                            want.begin() + range.begin);
        };
        JobState &have = blank.state(), &want = whole.state();
        EXPECT_TRUE(is_same(have.flat.weights(), want.flat.weights())) << what;
        EXPECT_TRUE(is_same(have.flat.half_weights(), want.flat.half_weights())) << what;
        EXPECT_TRUE(is_same(have.average.span(), want.average.span())) << what;
      }
    }
  }
  // What looks at the whole model before the first step.
  spec::JobOptions exact = sharded_job(), replicated = sharded_job();
  exact.train.pipeline_exact = true;
  replicated.train.pipelined.stage_replicas = {1, 2, 1};
  replicated.train.pipelined.micro_batches = 2;
  for (const spec::JobOptions& job : {exact, replicated}) {
    Replica may_be_blank(job, recipe_of(job), /*may_be_blank=*/true), whole(job);
    EXPECT_EQ(weights_of(may_be_blank), weights_of(whole));
  }
}

TEST(StageState, AWorkerReadsOfACheckpointWhatItIsToHold) {
  spec::JobOptions job = sharded_job();
  job.train.shard_copies = 1;
  job.train.ema_decay = 0.9;
  const OneRun run(job);
  run.go_on(job, 4, 4, /*to_its_end=*/false);
  const auto whole = run.newest(job);
  const auto saved = ckpt::open_latest(run.folder.checkpoints());
  ASSERT_TRUE(saved.checkpoint);
  Replica part(job, recipe_of(job), /*may_be_blank=*/true);
  const std::vector<int64_t> cut = {0, 1, 2, 3, 4};
  const Replica::Blocks blocks = part.shards().spread(cut).held[1];
  part.restore(*saved.checkpoint, blocks);
  EXPECT_EQ(part.step(), whole->step());
  EXPECT_EQ(part.shards().held(), blocks);
  JobState &have = part.state(), &want = whole->state();
  for (const parallel::BlockRange& held : blocks) {
    const parallel::FloatRange range = part.shards().floats(held);
    const auto same = [&](std::span<const float> a, std::span<const float> b) {
      return std::equal(a.begin() + range.begin, a.begin() + range.end, b.begin() + range.begin);
    };
    EXPECT_TRUE(same(have.flat.weights(), want.flat.weights()));
    EXPECT_TRUE(same(have.average.span(), want.average.span()));
    const auto states = have.optimizer->state(held), all = want.optimizer->state(held);
    ASSERT_EQ(states.size(), 2U);
    for (size_t i = 0; i < states.size(); ++i)
      EXPECT_TRUE(std::ranges::equal(states[i].values, all[i].values)) << states[i].name;
  }
  const int64_t before = part.shards().floats(blocks.front()).begin;
  EXPECT_GT(before, 0);
  EXPECT_TRUE(std::all_of(have.flat.weights().begin(), have.flat.weights().begin() + before,
                          [](float x) { return x == 0; }));
}

TEST(StageState, WhereItLiesChangesNoBitThroughKillsAndResizes) {
  for (const spec::JobOptions& job : sharded_jobs()) disturb_and_compare(job, {0, 1, 2, 3});
}

// Whoever has the gradient that overflows, all skip the step: the norm that tells of it is of all
// parts.
TEST(StageState, AStepThatOverflowsIsSkippedByAllWorkers) {
  for (const int64_t replicas : {1, 2}) {
    spec::JobOptions job = overflowing(sharded_job());
    job.train.pipelined.replicas = replicas;
    job.train.shard_copies = 1;
    spec::JobOptions ordinary = job;
    ordinary.train.shard_optimizer = false;
    const auto want = run_serial(ordinary);
    EXPECT_GE(want->skipped_steps(), 1) << "the loss scale overflows at first";
    EXPECT_LE(2 * want->skipped_steps(), want->updates()) << "and not for long";
    for (const int64_t workers : {2, 3, 4}) {
      const OneRun run(job);
      run.go_on(job, workers, 8, /*to_its_end=*/true);
      const auto got = run.newest(job);
      EXPECT_EQ(got->skipped_steps(), want->skipped_steps()) << workers << " workers";
      EXPECT_EQ(weights_of(*got), weights_of(*want)) << workers << " workers";
    }
  }
}

// The head of gpt reads the weights of its embedding, so the first stage and the last one keep
// them.
TEST(StageState, AWeightOfTwoStagesIsKeptByBoth) {
  const TempFolder folder;
  spec::JobOptions job = gpt_job(3, 400, folder.path());
  job.model.dim = 64;
  job.train.shard_optimizer = true;
  job.train.shard_copies = 1;
  const std::vector<int64_t> cut = {0, 1, 2, 3};
  const parallel::ShardLayout layout = Replica(job).shards().spread(cut);
  const auto holds_first = [&](size_t worker) {
    const Replica::Blocks& held = layout.held[worker];
    return !held.empty() && held.front().begin == 0;
  };
  EXPECT_TRUE(holds_first(0) && !holds_first(1) && holds_first(2));
  disturb_and_compare(job, {1, 2});
}

TEST(StageState, AnEvaluationByStagesIsThatOfOneWorker) {
  std::vector<spec::JobOptions> jobs = sharded_jobs();
  jobs.push_back(normed_job());
  jobs.back().eval.views = "flip";
  for (const spec::JobOptions& job : jobs) {
    const OneRun run(job);
    run.go_on(job, 4, 8, /*to_its_end=*/true);
    const auto newest = ckpt::open_latest(run.folder.checkpoints());
    ASSERT_TRUE(newest.checkpoint);
    const Evaluation alone = run_serial(job)->evaluate([](int64_t) {});
    EXPECT_EQ(newest.checkpoint->state().at("last"), alone.to_json())
        << job.model.name << ", " << job.optimizer.name;
  }
}

// No worker has all of it: each writes its own, and what they wrote is one checkpoint.
TEST(StageState, IsSavedByAllWorkersTogetherWhileTheJobRuns) {
  spec::JobOptions job = sharded_job();
  job.train.shard_copies = 1;
  job.train.ema_decay = 0.9;
  save_together_and_compare(job);
}

// What each worker has is told once in each generation: of the parts that it holds.
TEST(StageState, EachGenerationTellsWhatItsWorkersHaveInMemory) {
  spec::JobOptions job = sharded_job();
  job.train.shard_copies = 1;
  const OneRun run(job);
  run.go_on(job, 4, 8, /*to_its_end=*/true);
  nlohmann::json members;
  run::for_each_diary_line(run.folder.events_file(), [&](const nlohmann::json& line) {
    if (line.value("kind", "") == "memory") members = line.at("members");
  });
  ASSERT_EQ(members.size(), 4U) << members;
  constexpr int64_t kBlock = optim::kBlockFloats * 4, kAll = 142928 * 4, kTail = 4 * 16;
  const std::vector<int64_t> held = {7 * kBlock, kAll - 6 * kBlock, kAll - 8 * kBlock, 0};
  for (size_t w = 0; w < held.size(); ++w) {
    const nlohmann::json& told = members[w];
    EXPECT_EQ(told.at("ranks"), (nlohmann::json{w, w + 1})) << told;
    EXPECT_EQ(told.at("weights"), held[w]) << told;
    EXPECT_EQ(told.at("optimizer"), 2 * held[w]) << told;
    for (const char* const name : {"gradients", "sum"}) {
      EXPECT_GE(told.at(name).get<int64_t>(), held[w]) << told;
      EXPECT_LE(told.at(name).get<int64_t>(), held[w] + kTail) << told;
    }
    EXPECT_GT(told.at("resident").get<int64_t>(), 0) << told;
  }
}

// Saved by workers that hold parts, restored by other numbers of workers under other cuts, where
// the state is in parts and where it is not.
TEST(StageState, ACheckpointOfShardedStagesIsRestoredUnderOtherPlans) {
  spec::JobOptions job = sharded_job();
  const auto whole = weights_of(*run_serial(job));
  const OneRun run(job);
  int64_t at = 2;
  const std::vector<std::vector<std::string>> plans = {{},
                                                       {"fc1", "", "fc2", "fc3 fc4"},
                                                       {"fc1 fc2 fc3 fc4", "", "", ""},
                                                       {"", "fc1 fc2", "fc3", "fc4"}};
  for (const auto& stages : plans) {
    job.train.pipelined.stages = stages;
    job.train.shard_optimizer = at != 6;
    run.go_on(job, at == 4 ? 3 : 4, at, &stages == &plans.back());
    at += 2;
  }
  EXPECT_EQ(weights_of(*run.newest(job)), whole);
}

}  // namespace
}  // namespace ductile::train
