#include "ductile/train/staleness.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/train/replica.h"
#include "ductile/train/testing/watched_run.h"

namespace ductile::train {
namespace {

using testing::Bench;

spec::JobOptions stale_job(int64_t staleness) {
  spec::JobOptions job = testing::selection_job("plain");
  job.data.train_limit = 96;
  job.schedule.name = "constant";
  job.train.epochs = 4;
  job.train.virtual_ranks = 3;
  job.train.staleness = staleness;
  return job;
}

// Every age up to the bound occurs, about equally often, and none beyond it or before the first
// update.
TEST(Staleness, AgesAreDrawnAlikeUpToTheBound) {
  const spec::JobOptions job = stale_job(3);
  std::vector<int> seen(4);
  for (int64_t updates = 0; updates < 1000; ++updates) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      const int64_t age = staleness_of(job, updates, rank);
      ASSERT_GE(age, 0);
      ASSERT_LE(age, 3);
      ASSERT_LE(age, std::max<int64_t>(0, updates - 1));
      ++seen[static_cast<size_t>(age)];
    }
  }
  for (const int count : seen) EXPECT_NEAR(count, 750, 100);
}

TEST(Staleness, MembersOfABatchNormGroupShareAnAge) {
  spec::JobOptions job = stale_job(5);
  job.train.virtual_ranks = 8;
  job.train.bn_group = 4;
  std::set<bool> equal;
  for (int64_t updates = 0; updates < 100; ++updates) {
    for (int64_t rank = 1; rank < 4; ++rank)
      EXPECT_EQ(staleness_of(job, updates, rank), staleness_of(job, updates, 0));
    equal.insert(staleness_of(job, updates, 4) == staleness_of(job, updates, 0));
  }
  EXPECT_EQ(equal.size(), 2u);
}

// The loop written out: all weights of the past are there, and each rank's gradient is taken at
// those that it draws.
TEST(Staleness, EachRankDifferentiatesTheWeightsThatItDraws) {
  const spec::JobOptions job = stale_job(2);
  Replica run(job);
  run.host_all();
  std::vector<float> sum(static_cast<size_t>(run.vector_size()));
  Bench twin(job);
  const std::span<float> weights = twin.state.flat.weights();
  const std::vector<float> first(run.state().flat.weights().begin(),
                                 run.state().flat.weights().end());
  std::ranges::copy(first, weights.begin());
  std::vector<std::vector<float>> past{first};
  const int64_t per_rank = job.train.batch_size / job.train.virtual_ranks;
  data::LoaderTask task;
  task.seed = static_cast<uint64_t>(job.seed);
  task.batch_size = job.train.batch_size;
  task.parts = job.train.virtual_ranks;
  task.num_parts = job.train.virtual_ranks;
  data::Loader stream(twin.parts.train_set, twin.parts.augment, job.loader, task);
  int64_t updates = 0;
  for (; !run.done(); ++updates) {
    if (run.evaluation_due()) run.record(run.evaluate([](int64_t) {}));
    if (run.done()) break;
    run.compute(run.num_ranks(), sum);
    run.apply(sum);
    std::vector<float> mean(weights.size());
    for (int64_t rank = 0; rank < job.train.virtual_ranks; ++rank) {
      const auto batch = stream.next();
      ASSERT_EQ(batch->num_samples, per_rank);
      const int64_t age = staleness_of(job, updates, batch->part);
      std::ranges::copy(past[static_cast<size_t>(updates - age)], weights.begin());
      const std::vector<float> own = twin.gradient(twin.losses(*batch, true).mean());
      for (size_t i = 0; i < mean.size(); ++i)
        mean[i] += own[i] / static_cast<float>(job.train.virtual_ranks);
    }
    std::ranges::copy(past.back(), weights.begin());
    optim::StepInput in;
    in.weights = weights;
    in.gradient = mean;
    in.hyper = optim::Hyper::of(job);
    twin.state.optimizer->step(in);
    past.emplace_back(weights.begin(), weights.end());
  }
  EXPECT_EQ(updates, 32);
  testing::expect_same_weights(run, twin);
  // The test can fail: fresh weights lead elsewhere.
  Replica fresh(stale_job(0));
  testing::run_to_end(fresh);
  EXPECT_FALSE(std::ranges::equal(fresh.state().flat.weights(), run.state().flat.weights()));
}

TEST(Staleness, ShardedUpdatesAreRefused) {
  spec::JobOptions job = stale_job(1);
  job.train.shard_optimizer = true;
  EXPECT_NE(testing::refusal_of([&] { spec::check(job); }).find("train.staleness = 1"),
            std::string::npos);
}

}  // namespace
}  // namespace ductile::train
