#include "ductile/train/staleness.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/writer.h"
#include "ductile/spec/methods.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/watched_run.h"

namespace ductile::train {
namespace {

using testing::Bench;
using Bounds = std::vector<int64_t>;  // of the updates, in their order; then from the first again

spec::JobOptions stale_job(int64_t staleness) {
  spec::JobOptions job = testing::selection_job("plain");
  job.data.train_limit = 96;
  job.schedule.name = "constant";
  job.train.epochs = 4;
  job.train.virtual_ranks = 3;
  job.train.staleness = staleness;
  return job;
}

// Chooses the bounds as a tuner may.
class Changing final : public optim::RateControl {
 public:
  Changing(const spec::JobOptions& job, std::shared_ptr<const Bounds> bounds)
      : hyper_(optim::Hyper::of(job)), bounds_(std::move(bounds)) {}

  optim::Hyper next(const optim::Observed& observed, nlohmann::json&) const override {
    optim::Hyper hyper = hyper_;
    hyper.staleness = bounds_->at(static_cast<size_t>(observed.updates) % bounds_->size());
    return hyper;
  }

 private:
  const optim::Hyper hyper_;
  const std::shared_ptr<const Bounds> bounds_;
};

Recipe changing(const spec::JobOptions& job, const std::shared_ptr<const Bounds>& bounds) {
  return [=] {
    Ingredients given;
    given.rate_control = std::make_unique<Changing>(job, bounds);
    return complete(std::move(given), job);
  };
}

// The copies of earlier weights in the state.
int64_t num_kept(const Replica& run) {
  const auto part = run.state().extras().find("staleness");
  return part == run.state().extras().end() ? 0 : std::ssize(part->second.arrays);
}

void advance(Replica& run, int count) {
  run.host_all();
  std::vector<float> sum(static_cast<size_t>(run.vector_size()));
  for (int i = 0; i < count; ++i) {
    run.compute(run.num_ranks(), sum);
    run.apply(sum);
  }
}

std::vector<float> copy_of_weights(Replica& run) {
  const auto weights = run.state().flat.weights();
  return {weights.begin(), weights.end()};
}

// Every age up to the bound occurs, about equally often, and none beyond it.
TEST(Staleness, AgesAreDrawnAlikeUpToTheBound) {
  const spec::JobOptions job = stale_job(3);
  std::vector<int> seen(4);
  for (int64_t updates = 0; updates < 1000; ++updates) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      const int64_t age = staleness_of(job, updates, rank, 3);
      ASSERT_GE(age, 0);
      ASSERT_LE(age, 3);
      ++seen[static_cast<size_t>(age)];
      EXPECT_EQ(staleness_of(job, updates, rank, 0), 0);
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
      EXPECT_EQ(staleness_of(job, updates, rank, 5), staleness_of(job, updates, 0, 5));
    equal.insert(staleness_of(job, updates, 4, 5) == staleness_of(job, updates, 0, 5));
  }
  EXPECT_EQ(equal.size(), 2u);
}

// The loop written out: all weights of the past are there, and each rank's gradient is taken at
// those that it draws. How many of them may be drawn from is counted: none that lie before an
// update with a bound of 0, and none that an earlier, smaller bound had dropped.
void expect_loop(Replica& run, const Bounds& bounds) {
  const spec::JobOptions& job = run.job();
  run.host_all();
  std::vector<float> sum(static_cast<size_t>(run.vector_size()));
  Bench twin(job);
  const std::span<float> weights = twin.state.flat.weights();
  std::vector<std::vector<float>> past{copy_of_weights(run)};
  const int64_t per_rank = job.train.batch_size / job.train.virtual_ranks;
  data::LoaderTask task;
  task.seed = static_cast<uint64_t>(job.seed);
  task.batch_size = job.train.batch_size;
  task.parts = job.train.virtual_ranks;
  task.num_parts = job.train.virtual_ranks;
  data::Loader stream(twin.parts.train_set, twin.parts.augment, job.loader, task);
  int64_t updates = 0, kept = 0;
  for (; !run.done(); ++updates) {
    if (run.evaluation_due()) run.record(run.evaluate([](int64_t) {}));
    if (run.done()) break;
    run.compute(run.num_ranks(), sum);
    run.apply(sum);
    const int64_t bound = bounds[static_cast<size_t>(updates) % bounds.size()];
    const int64_t most = std::max<int64_t>(0, std::min(bound, kept - 1));
    std::vector<float> mean(weights.size());
    for (int64_t rank = 0; rank < job.train.virtual_ranks; ++rank) {
      const auto batch = stream.next();
      ASSERT_EQ(batch->num_samples, per_rank);
      const int64_t age = staleness_of(job, updates, batch->part, most);
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
    kept = bound == 0 ? 0 : std::min(kept, bound) + 1;
    ASSERT_EQ(num_kept(run), kept) << "after " << updates + 1 << " updates";
  }
  EXPECT_EQ(updates, 32);
  testing::expect_same_weights(run, twin);
}

TEST(Staleness, EachRankDifferentiatesTheWeightsThatItDraws) {
  const spec::JobOptions job = stale_job(2);
  Replica run(job);
  expect_loop(run, {2});
  // The test can fail: fresh weights lead elsewhere.
  Replica fresh(stale_job(0));
  testing::run_to_end(fresh);
  EXPECT_NE(copy_of_weights(fresh), copy_of_weights(run));
}

TEST(Staleness, TheBoundGrowsAndShrinksInMidRun) {
  const spec::JobOptions job = stale_job(4);
  const auto bounds =
      std::make_shared<const Bounds>(Bounds{1, 1, 1, 4, 4, 4, 4, 4, 4, 2, 2, 4, 4, 4, 0, 0,
                                            3, 3, 3, 3, 3, 1, 2, 3, 4, 4, 4, 4, 4, 0, 4, 4});
  Replica run(job, changing(job, bounds));
  expect_loop(run, *bounds);
}

// A trial with another bound: done twice from the same branch it has the same bits, and when the
// branch is taken back, nothing is left of it.
TEST(Staleness, ABranchThatChangesItIsTakenBackToTheBit) {
  const spec::JobOptions job = stale_job(3);
  const auto bounds = std::make_shared<Bounds>(Bounds{3});
  Replica straight(job), tried(job, changing(job, bounds));
  JobState& state = tried.state();
  const auto set_bound = [&](int64_t bound) {
    bounds->at(0) = state.hyper.staleness = bound;
    tried.take(state.fork());
  };
  advance(straight, 6);
  advance(tried, 6);
  state.save_branch("trunk", "tuner");
  for (const int64_t bound : {0, 1, 3}) {
    std::vector<float> ends[2];
    for (std::vector<float>& end : ends) {
      state.take_branch("trunk", "tuner");
      set_bound(bound);
      advance(tried, 3);
      EXPECT_EQ(num_kept(tried), bound == 0 ? 0 : bound + 1);
      end = copy_of_weights(tried);
    }
    EXPECT_EQ(ends[0], ends[1]) << bound;
    state.take_branch("trunk", "tuner");
    EXPECT_EQ(num_kept(tried), 4);
    EXPECT_EQ(copy_of_weights(tried), copy_of_weights(straight));
    set_bound(3);
  }
  state.drop_branches();
  advance(straight, 5);
  advance(tried, 5);
  const auto here = state.tensors(), there = straight.state().tensors();
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(here[i].bytes, there[i].bytes)) << here[i].name;
}

// Of the copies only the newest is another one after an update, and that is the weights.
TEST(Staleness, BranchesShareTheOldWeightsThatBothHave) {
  const spec::JobOptions job = stale_job(8);
  Replica run(job);
  advance(run, 12);
  JobState& state = run.state();
  const size_t bytes = state.flat.weights().size_bytes();
  state.save_branch("a", "tuner");
  EXPECT_GE(state.branches().at("a").own_bytes(), 9 * bytes) << "eight copies and the weights";
  EXPECT_LE(state.branches().at("a").own_bytes(), 10 * bytes) << "with the momentum";
  state.save_branch("b", "tuner");
  EXPECT_EQ(state.branches().at("b").own_bytes(), 0U);
  for (const char* name : {"c", "d"}) {
    advance(run, 1);
    state.save_branch(name, "tuner");
    EXPECT_GE(state.branches().at(name).own_bytes(), bytes);
    EXPECT_LE(state.branches().at(name).own_bytes(), 2 * bytes) << "with the momentum; " << name;
  }
}

// Its hyperparameters held no staleness, since it was the job's in every step.
TEST(Staleness, GoesOnFromACheckpointOfAnOlderVersion) {
  const TempFolder folder;
  const spec::JobOptions job = stale_job(2);
  Replica a(job), b(job);
  advance(a, 6);
  for (const char* name : {"trial", "twin"}) a.state().save_branch(name, "tuner");
  {
    ckpt::CheckpointWriter writer(folder.path(), ckpt::WriterOptions{});
    nlohmann::json values = a.values();
    for (nlohmann::json* of :
         {&values, &values["branches"]["trial"]["values"], &values["branches"]["twin"]["values"]})
      for (const char* name : {"hyper", "last_hyper"})
        EXPECT_EQ(of->at(name).erase("staleness"), 1U);
    EXPECT_EQ(values["job"]["tune"].erase("staleness"), 1U);
    writer.save(a.step(), values, a.state().tensors());
    writer.wait();
  }
  b.restore(ckpt::Checkpoint::open(folder.path(), 6));
  EXPECT_EQ(b.state().digest(), a.state().digest());
  EXPECT_EQ(b.state().branches().at("twin").own_bytes(), 0U) << "equal pieces are one again";
  advance(a, 5);
  advance(b, 5);
  EXPECT_EQ(b.state().digest(), a.state().digest());
}

TEST(Staleness, ShardedUpdatesAreRefused) {
  spec::JobOptions job = stale_job(1);
  job.train.shard_optimizer = true;
  EXPECT_NE(testing::refusal_of([&] { spec::check(job); }).find("train.staleness = 1"),
            std::string::npos);
}

}  // namespace
}  // namespace ductile::train
