// Stages with numbers of replicas of their own (train.pipelined.stage_replicas): the same bits on
// every number of workers, killed and resized, and the results of one process but for rounding.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/options.h"
#include "ductile/nn/operator_model.h"
#include "ductile/parallel/exchange.h"
#include "ductile/spec/job.h"
#include "ductile/train/flat_model.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/replica.h"
#include "ductile/train/same_job.h"
#include "ductile/train/stage_runner.h"
#include "ductile/train/testing/stage_jobs.h"

namespace ductile::train {
namespace {

using testing::disturb_and_compare;
using testing::OneRun;
using testing::read_tokens;
using testing::run_serial;
using testing::sharded_job;
using testing::small_job;
using testing::weights_of;
using testing::with_lars;

// In as many stages as there are numbers; micro-batches of 12 samples.
spec::JobOptions unequal_job(const char* model, std::vector<int64_t> replicas) {
  int64_t ranks = 0;
  for (const int64_t r : replicas) ranks += r;
  spec::JobOptions job = small_job(model, ranks);
  job.train.pipelined.micro_batches = 2;
  job.train.pipelined.stage_replicas = std::move(replicas);
  return job;
}

// Running statistics and their averages, a chain of norms.
spec::JobOptions normed_replicas(std::vector<int64_t> replicas) {
  spec::JobOptions job = unequal_job("resnet8", std::move(replicas));
  job.train.ema_decay = 0.9;
  return job;
}

float most_apart(const std::vector<float>& a, const std::vector<float>& b) {
  float out = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    out = std::max(out, std::abs(a[i] - b[i]));
  }
  return out;
}

TEST(StageReplicas, GiveTheWeightsOfOneProcessButForRounding) {
  const auto alone = weights_of(*run_serial(unequal_job("mlp", {1})));
  const std::vector<std::vector<int64_t>> all = {{2, 1}, {1, 3}, {3, 2}, {4, 1, 6}};
  for (const std::vector<int64_t>& replicas : all) {
    const auto shared = run_serial(unequal_job("mlp", replicas));
    EXPECT_LT(most_apart(weights_of(*shared), alone), 1e-5F) << replicas[0] << ", " << replicas[1];
  }
}

TEST(StageReplicas, GiveTheLossOfOneProcessButForRounding) {
  const double alone = run_serial(unequal_job("mlp", {1}))->state().loss.value_or(-1);
  const double shared = run_serial(unequal_job("mlp", {2, 3}))->state().loss.value_or(-2);
  EXPECT_NEAR(shared, alone, 1e-5 * std::abs(alone));
}

TEST(StageReplicas, HaveTheSameBitsOnAnyWorkersThroughKillsAndResizes) {
  std::vector<spec::JobOptions> jobs = {unequal_job("cnn", {2, 1, 3}), unequal_job("mlp", {1, 4}),
                                        normed_replicas({3, 1, 2}), normed_replicas({1, 3})};
  jobs[1].train.precision = "bf16";
  jobs[2].train.pipelined.orders.assign(3, "F2B2W2");
  for (const spec::JobOptions& job : jobs) disturb_and_compare(job, {0, 1, 2, 3});
}

// A replica's twin has the state of its stage; a stage of one replica has copies.
TEST(StageReplicas, KeepTheirBitsWhereTheStateLiesByStage) {
  for (const auto& [copies, lars] : {std::pair{1, false}, {2, false}, {1, true}}) {
    spec::JobOptions job = lars ? with_lars(sharded_job()) : sharded_job();
    job.train.pipelined.micro_batches = 2;
    job.train.pipelined.stage_replicas = {2, 1, 3};
    job.train.virtual_ranks = 6;
    job.train.shard_copies = copies;
    job.train.ema_decay = 0.9;
    disturb_and_compare(job, {1, 3});
  }
}

// The head of gpt reads the weights of its embedding: the replicas of the first stage and of the
// last one add what they have of them.
TEST(StageReplicas, AWeightOfTwoStagesIsTheSumOverTheReplicasOfBoth) {
  const TempFolder folder;
  const auto job_of = [&](std::vector<int64_t> replicas, bool by_stage) {
    spec::JobOptions job = unequal_job("gpt", std::move(replicas));
    read_tokens(job, 400, folder.path());
    job.model.layers = 2;
    job.model.dim = 64;
    job.model.heads = 2;
    job.model.dropout = 0;
    job.train.shard_optimizer = by_stage;
    job.train.shard_copies = 1;
    return job;
  };
  const auto alone = weights_of(*run_serial(job_of({1}, false)));
  const spec::JobOptions job = job_of({2, 1, 3}, true);
  EXPECT_LT(most_apart(weights_of(*run_serial(job)), alone), 1e-5F);
  disturb_and_compare(job, {0, 1, 2});
}

// Of each part's mean the mean is that of the micro-batch. The first norm reads what no other norm
// has touched.
TEST(StageReplicas, RunningStatisticsAreTheMeanOverReplicas) {
  const auto first_mean = [](std::vector<int64_t> replicas) {
    const spec::JobOptions job = normed_replicas(std::move(replicas));
    Replica replica(job);
    replica.host_all();
    std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
    const FlatModel& flat = replica.state().flat;
    const auto mean = std::ranges::find_if(
        flat.buffers(), [](const FlatModel::Entry& e) { return e.name.ends_with("running_mean"); });
    const std::span<float> all = replica.state().flat.buffer_values();
    const auto own =
        all.subspan(static_cast<size_t>(mean->offset), static_cast<size_t>(mean->size));
    return std::vector<float>(own.begin(), own.end());
  };
  const std::vector<float> alone = first_mean({1});
  EXPECT_GT(most_apart(alone, std::vector<float>(alone.size())), 1e-3F);
  EXPECT_LT(most_apart(first_mean({2, 1}), alone), 1e-6F);
  EXPECT_LT(most_apart(first_mean({3, 2}), alone), 1e-6F);
}

// Its second operator turns the samples round, which no shape shows.
class Turning final : public nn::OperatorModel {
 public:
  explicit Turning(const nn::ModelArgs& args) : OperatorModel(args) {
    const nn::Source h = add_dense("fc1", add_linear("fc1", 28 * 28, 12), input(), true);
    const nn::Source turned =
        add("turn", "turn", {h}, {}, [](Inputs in) { return in[0].flip({0}); });
    finish(add_dense("fc2", add_linear("fc2", 12, 10), turned, false));
  }
};

// In the first step it would be too late: a worker has given back the weights of other stages by
// then, and of zeros nobody sees which sample they are of.
TEST(StageReplicas, AreRefusedWhileAllWeightsAreThereWhereSamplesChangePlaces) {
  spec::JobOptions job = unequal_job("mlp", {1, 1, 2});
  job.train.pipelined.stages = {"fc1", "turn", "fc2"};
  nn::ModelArgs args;
  args.info = {.channels = 1, .height = 28, .width = 28, .num_classes = 10};
  Ingredients given;
  given.model = std::make_unique<Turning>(args);
  Ingredients parts = complete(std::move(given), job);
  FlatModel flat(*parts.model, job.optimizer);
  const parallel::ExchangeLayout layout{{0, 1, 2, 3, 4}, 0};
  for (const bool hosts : {true, false}) {  // or counts memory, before it meets others
    StageRunner runner(job, parts, flat);
    std::string refusal;
    try {
      if (hosts) {
        runner.host(layout, /*rank=*/1, nullptr);
      } else {
        runner.message_bytes(layout.cut);
      }
    } catch (const Error& e) {
      refusal = e.what();
    }
    EXPECT_NE(refusal.find("operator turn does not have the samples first"), std::string::npos)
        << refusal;
  }
}

// Checkpoints belong to no schedule; who has which operators, and in how many replicas, is in the
// bits.
TEST(StageReplicas, AResumedRunMayChangeItsScheduleAlone) {
  spec::JobOptions job = unequal_job("cnn", {2, 1, 3});
  const auto whole = weights_of(*run_serial(job));
  const OneRun run(job);
  run.go_on(job, 3, 2, false);
  job.train.pipelined.orders.assign(3, "F2B2W2");
  run.go_on(job, 1, 5, false);
  job.train.pipelined.orders.assign(3, "FBFB");
  job.train.pipelined.recompute = {"conv1", "fc1"};
  run.go_on(job, 6, 8, true);
  EXPECT_EQ(weights_of(*run.newest(job)), whole);

  const nlohmann::json saved = OptionSet(job).to_json();
  spec::JobOptions other = job;
  other.train.pipelined.stage_replicas = {3, 1, 2};
  EXPECT_THROW(check_same_job(saved, OptionSet(other).to_json(), true), Error);
  other = job;
  other.train.pipelined.stages = {"conv1", "pool1 conv2 pool2", "fc1 fc2"};
  EXPECT_THROW(check_same_job(saved, OptionSet(other).to_json(), true), Error);
}

}  // namespace
}  // namespace ductile::train
