// Jobs whose stages are divided among parts (train.pipelined.tensor): the same bits on any workers,
// killed and resized, and each part's state by itself.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/parallel/shards.h"
#include "ductile/train/replica.h"
#include "ductile/train/same_job.h"
#include "ductile/train/testing/stage_jobs.h"

namespace ductile::train {
namespace {

using testing::disturb_and_compare;
using testing::gpt_job;
using testing::OneRun;
using testing::run_serial;
using testing::save_together_and_compare;
using testing::sharded_job;
using testing::small_job;
using testing::weights_of;

spec::JobOptions divided(spec::JobOptions job, std::vector<int64_t> tensor) {
  job.train.virtual_ranks = 0;
  for (const int64_t parts : tensor) {
    job.train.virtual_ranks += parts * job.train.pipelined.replicas;
  }
  job.train.pipelined.tensor = std::move(tensor);
  return job;
}

// Largest difference, relative to the largest weight.
double farthest(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0, scale = 1e-6;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
    scale = std::max(scale, std::abs(double{a[i]}));
  }
  return most / scale;
}

TEST(TensorStages, HaveTheSameBitsOnAnyWorkersThroughKillsAndResizes) {
  spec::JobOptions job = divided(small_job("mlp", 2), {2, 2});
  disturb_and_compare(job, {0, 1, 2, 3});
  job.train.pipelined.orders = {"F3B3W3", "FBWFBWFBW"};
  disturb_and_compare(job, {1});
  disturb_and_compare(divided(small_job("cnn", 2), {1, 3}), {2, 3});
}

TEST(TensorStages, OfSeveralPipelinesHaveTheSameBitsThroughKillsAndResizes) {
  spec::JobOptions job = small_job("mlp", 2);
  job.train.pipelined.replicas = 2;
  job.train.pipelined.micro_batches = 2;
  disturb_and_compare(divided(job, {2}), {0, 1, 2, 3});
  disturb_and_compare(divided(job, {2, 1}), {2, 3});
}

// Norms, a tied weight, and matrices whose columns lie apart in memory.
TEST(TensorStages, OfGptHaveTheSameBitsThroughKillsAndResizes) {
  const TempFolder folder;
  spec::JobOptions whole = gpt_job(2, 40, folder.path());
  whole.model.layers = 1;
  disturb_and_compare(divided(whole, {2, 1}), {1, 2});
  spec::JobOptions job = divided(whole, {2, 2});
  job.train.shard_optimizer = true;
  job.train.shard_copies = 1;
  disturb_and_compare(job, {2, 3});
}

TEST(TensorStages, WithTheStateByPartHaveTheSameBitsThroughKillsAndResizes) {
  spec::JobOptions job = divided(sharded_job(), {2, 2});
  disturb_and_compare(job, {0, 1, 2, 3});
  job.train.shard_copies = 1;
  job.train.precision = "bf16";
  job.optimizer.name = "lamb";
  job.optimizer.clip_norm = 1;
  job.train.ema_decay = 0.9;
  disturb_and_compare(job, {1, 3});
}

TEST(TensorStages, WhereTheStateLiesChangesNoBit) {
  spec::JobOptions job = divided(sharded_job(), {2, 2});
  const auto by_part = weights_of(*run_serial(job));
  job.train.shard_optimizer = false;
  EXPECT_EQ(weights_of(*run_serial(job)), by_part);
}

// 49 blocks of the first matrix and one for the rest, of which a part needs half, and the ends.
TEST(TensorStages, APartHoldsItsShareOfTheState) {
  spec::JobOptions job = sharded_job();
  job.model.hidden = {1024};
  job.train.shard_copies = 1;
  const auto held = [](const spec::JobOptions& of, const std::vector<int64_t>& cut) {
    const parallel::ShardLayout layout = Replica(of).shards().spread(cut);
    std::vector<int64_t> out;
    for (const Replica::Blocks& blocks : layout.held) {
      int64_t& sum = out.emplace_back(0);
      for (const parallel::BlockRange& b : blocks) sum += b.end - b.begin;
    }
    return out;
  };
  const int64_t all = held(divided(job, {1}), {0, 1}).front();
  for (const int64_t parts : {2, 4}) {
    std::vector<int64_t> cut;
    for (int64_t p = 0; p <= parts; ++p) cut.push_back(p);
    for (const int64_t of_part : held(divided(job, {parts}), cut)) {
      EXPECT_LE(of_part, all / parts + 3) << parts;
      EXPECT_GE(of_part, all / parts) << parts;
    }
  }
}

TEST(TensorStages, AnEvaluationByPartsIsThatOfOneWorker) {
  for (const char* const precision : {"fp32", "bf16"}) {
    spec::JobOptions job = divided(sharded_job(), {2, 2});
    job.train.shard_copies = 1;
    job.train.precision = precision;
    const OneRun run(job);
    run.go_on(job, 4, 8, /*to_its_end=*/true);
    const auto newest = ckpt::open_latest(run.folder.checkpoints());
    ASSERT_TRUE(newest.checkpoint);
    const Evaluation alone = run_serial(job)->evaluate([](int64_t) {});
    EXPECT_EQ(newest.checkpoint->state().at("last"), alone.to_json()) << precision;
  }
}

// What the parts of a first layer read has no gradient, so no sum is cut; elsewhere one is.
TEST(TensorStages, AreAJobInOneProcessToRoundingAndInItsFirstLayerToTheBit) {
  spec::JobOptions job = small_job("mlp", 2);
  job.train.pipelined.stages = {"fc1", "fc2 fc3"};
  const auto whole = run_serial(job);
  const auto first = run_serial(divided(job, {3, 1}));
  EXPECT_EQ(weights_of(*first), weights_of(*whole));
  // What is saved knows nothing of parts.
  EXPECT_EQ(ckpt::tensors_digest(first->state().tensors()),
            ckpt::tensors_digest(whole->state().tensors()));
  const auto both = run_serial(divided(job, {2, 4}));
  EXPECT_NE(weights_of(*both), weights_of(*whole));
  EXPECT_LT(farthest(weights_of(*whole), weights_of(*both)), 1e-5);
  const double loss = whole->state().loss.value_or(-1);
  EXPECT_NEAR(both->state().loss.value_or(-2), loss, 1e-5 * loss);
}

// Saved by parts, and restored by other numbers of workers, under other letters, and where the
// state is not divided.
TEST(TensorStages, ACheckpointIsRestoredUnderOtherLettersAndOnOtherWorkers) {
  spec::JobOptions job = divided(sharded_job(), {2, 2});
  job.train.shard_copies = 1;
  const auto whole = weights_of(*run_serial(job));
  const OneRun run(job);
  int64_t at = 2;
  for (const char* const order : {"", "F3B3", "F3B3W3"}) {
    job.train.pipelined.orders.assign(static_cast<size_t>(*order == 0 ? 0 : 2), order);
    job.train.shard_optimizer = at != 4;
    run.go_on(job, at == 2 ? 4 : at / 2, at, /*to_its_end=*/at == 6);
    at += 2;
  }
  EXPECT_EQ(weights_of(*run.newest(job)), whole);
}

// No worker has all of the first matrix: each writes its rows, and they become one tensor.
TEST(TensorStages, EachPartSavesItsSliceWhileTheJobRuns) {
  spec::JobOptions job = sharded_job();
  job.model.hidden = {512};
  job.train.shard_copies = 1;
  job.train.ema_decay = 0.9;
  save_together_and_compare(divided(job, {4}));
}

TEST(TensorStages, AResumedRunKeepsItsPartsAndItsCut) {
  const auto json = [](std::vector<int64_t> tensor, std::vector<std::string> stages) {
    spec::JobOptions job = divided(small_job("mlp", 2), std::move(tensor));
    job.train.pipelined.stages = std::move(stages);
    return OptionSet(job).to_json();
  };
  const std::vector<std::string> cut = {"fc1 fc2", "fc3"}, other = {"fc1", "fc2 fc3"};
  EXPECT_NO_THROW(check_same_job(json({2, 1}, cut), json({2, 1}, cut), true));
  EXPECT_THROW(check_same_job(json({2, 1}, cut), json({1, 2}, cut), true), Error);
  EXPECT_THROW(check_same_job(json({2, 1}, cut), json({2, 1}, other), true), Error);
  EXPECT_NO_THROW(check_same_job(json({1, 1}, cut), json({1, 1}, other), true));
}

TEST(TensorStages, WhatCannotBeDividedIsRefusedByName) {
  spec::JobOptions job = small_job("cnn", 2);
  job.train.pipelined.stages = {"conv1 pool1 conv2 pool2", "fc1 fc2"};
  try {
    const Replica replica(divided(job, {2, 1}));
    FAIL() << "a stage of convolutions was divided";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("stage 0 is to be divided among 2 parts"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace ductile::train
