// Parameters that are not trained, and first values that come from the data.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/options.h"
#include "ductile/nn/whitening.h"
#include "ductile/run/folder.h"
#include "ductile/spec/methods.h"
#include "ductile/train/initial_weights.h"
#include "ductile/train/replica.h"

namespace ductile::train {
namespace {

spec::JobOptions job_of(const char* model) {
  spec::JobOptions job;
  job.data.train_limit = 96;
  job.data.test_limit = 32;
  job.model.name = model;
  job.model.width = 8;
  job.model.hidden = {16};
  job.loader.threads = 1;
  job.optimizer.lr = 0.02;
  job.train.epochs = 4;
  job.train.batch_size = 24;
  job.train.virtual_ranks = 2;
  job.train.eval_every_epochs = 100;
  return job;
}

// What is said to a run that begins; nothing where it may.
std::string refusal_of_begin(spec::JobOptions job) {
  Replica replica(job);
  const TempFolder place;
  try {
    begin_with_initial_weights(
        replica, job, run::RunFolder::create(place.path(), "frozen", OptionSet(job).to_toml()));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.message();
  }
  return "";
}

void train_step(Replica& replica, bool early = false) {
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  replica.compute(replica.num_ranks(), sum,
                  early ? [](int64_t) {} : std::function<void(int64_t)>());
  replica.apply(sum);
}

std::vector<float> values_of(Replica& replica, const char* name) {
  const optim::Segment& s = replica.layout().segment(name);
  const std::span<const float> weights = replica.state().flat.weights();
  return {weights.begin() + s.offset, weights.begin() + s.offset + s.size};
}

at::Tensor parameter(nn::Model& model, const std::string& name) {
  for (const nn::NamedTensor& p : model.parameters()) {
    if (p.name == name) return p.tensor;
  }
  return {};
}

TEST(Frozen, ParametersStayAndNeedNoGradient) {
  spec::JobOptions job = job_of("mlp");
  job.optimizer.freeze = {"fc1.weight", "fc2.bias:2"};
  job.optimizer.no_decay = {};
  Replica replica(job);
  replica.host_all();
  const auto weight = values_of(replica, "fc1.weight"), bias = values_of(replica, "fc2.bias");
  std::vector<float> after_two;
  for (int step = 0; step < 12; ++step) {  // 4 an epoch
    if (step == 8) after_two = values_of(replica, "fc2.bias");
    train_step(replica, step % 2 == 1);
  }
  EXPECT_EQ(values_of(replica, "fc1.weight"), weight);
  EXPECT_NE(after_two, bias);
  EXPECT_EQ(values_of(replica, "fc2.bias"), after_two);
  EXPECT_NE(values_of(replica, "fc1.bias"), std::vector<float>(16));
}

// Going back to a state in which a parameter is still trained.
TEST(Frozen, AParameterIsTrainedAgainInAnEarlierState) {
  spec::JobOptions job = job_of("mlp");
  job.optimizer.freeze = {"fc2:1"};
  Replica replica(job), twin(job);
  replica.host_all();
  twin.host_all();
  for (int step = 0; step < 2; ++step) train_step(replica, true);
  const StateImage early = replica.state().fork();
  for (int step = 0; step < 5; ++step) train_step(replica, true);
  const std::string late = replica.state().digest().value();
  replica.take(early);
  for (int step = 0; step < 5; ++step) train_step(replica, true);
  EXPECT_EQ(replica.state().digest(), late);
  for (int step = 0; step < 7; ++step) train_step(twin);
  EXPECT_EQ(twin.state().digest(), late);
}

// libtorch would say that nothing requires a gradient, and after an epoch in the second case.
TEST(Frozen, ARunThatWouldTrainNothingIsRefused) {
  const auto refusal = [](std::vector<std::string> freeze, int64_t max_steps) -> std::string {
    spec::JobOptions job = job_of("mlp");
    job.optimizer.freeze = std::move(freeze);
    job.train.max_steps = max_steps;
    return refusal_of_begin(job);
  };
  EXPECT_NE(refusal({"fc"}, 0).find("nothing to train"), std::string::npos);
  EXPECT_NE(refusal({"fc1", "fc2:1"}, 0).find("after 1 epochs"), std::string::npos);
  EXPECT_EQ(refusal({"fc1", "fc2:1"}, 4), "") << "four steps are an epoch";
  EXPECT_NE(refusal({"fc1", "fc2:1"}, 5), "");
  EXPECT_EQ(refusal({"fc1", "fc2:4"}, 0), "");
}

// A run of an earlier version, or one that came further than anybody knew.
TEST(Frozen, AStepInWhichNothingIsTrainedSaysSo) {
  spec::JobOptions job = job_of("mlp");
  job.optimizer.freeze = {"fc1", "fc2:1"};
  Replica replica(job);
  replica.host_all();
  for (int step = 0; step < 4; ++step) train_step(replica);
  try {
    train_step(replica);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("all parameters are frozen since epoch 1 "), std::string::npos)
        << e.message();
  }
}

// 7 steps of 14 samples are the epoch of 100: the last one begins at 6/7 of it, not at 84/100.
TEST(Frozen, TheLastStepIsCountedAsTheRunCountsIt) {
  spec::JobOptions job = job_of("mlp");
  job.data.train_limit = 100;
  job.train.batch_size = 14;
  job.train.virtual_ranks = 2;
  job.train.epochs = 1;
  job.optimizer.freeze = {"fc1", "fc2:0.85"};
  EXPECT_NE(refusal_of_begin(job), "");
  job.optimizer.freeze = {"fc1", "fc2:0.86"};
  EXPECT_EQ(refusal_of_begin(job), "");
  Replica replica(job);
  replica.host_all();
  for (int step = 0; step < 7; ++step) train_step(replica);
}

// Four steps of the job's own batch are an epoch; larger ones come further.
TEST(Frozen, WhereTheBatchMayGrowStepsAreCountedInTheLargestOnes) {
  spec::JobOptions job = job_of("mlp");
  job.optimizer.freeze = {"fc1", "fc2:1"};
  job.train.max_steps = 4;
  job.train.rate_control = "noise";
  EXPECT_NE(refusal_of_begin(job), "");
  job.train.noise.max_batch = job.train.batch_size;
  EXPECT_EQ(refusal_of_begin(job), "") << "it may not grow";
  job.train.noise.max_batch = 0;
  job.train.max_steps = 1;
  EXPECT_EQ(refusal_of_begin(job), "") << "one step begins where the run does";
  job.train.max_steps = 4;
  job.train.rate_control = "schedule";
  EXPECT_EQ(refusal_of_begin(job), "");
}

// Their epochs have fewer updates, so as many updates are more epochs.
TEST(Frozen, MethodsThatSkipSamplesAreCountedByTheirEpochs) {
  for (const char* method : {"infobatch", "graded", "selective", "stale_selective"}) {
    spec::JobOptions job = job_of("mlp");
    job.optimizer.freeze = {"fc1", "fc2:1"};
    job.train.max_steps = 4;
    job.train.method = method;
    EXPECT_EQ(refusal_of_begin(job), "") << method << ": all in the first epoch, which is whole";
    job.train.max_steps = 6;
    job.optimizer.freeze = {"fc1", "fc2:2"};
    EXPECT_NE(refusal_of_begin(job), "") << method;
    job.train.selective.length = "updates";
    if (spec::counts_updates(job)) {
      EXPECT_EQ(refusal_of_begin(job), "") << method;
    }
  }
}

TEST(Frozen, WhatIsAdvisedIsAllowed) {
  spec::JobOptions job = job_of("mlp");
  const auto refusal = [&] { return refusal_of_begin(job); };
  job.optimizer.freeze = {"fc1", "fc2:2.5"};
  job.train.epochs = 4;
  job.train.max_steps = 14;
  EXPECT_NE(
      refusal().find("train.max_steps = 14; train one of them longer, or set train.epochs = 2"),
      std::string::npos)
      << refusal();
  job.train.epochs = 2;
  EXPECT_EQ(refusal(), "");
  job.optimizer.freeze = {"fc1", "fc2:0.5"};
  EXPECT_TRUE(refusal().ends_with("train one of them longer")) << refusal();
}

TEST(Frozen, ANameThatNoParameterHasIsRefused) {
  spec::JobOptions job = job_of("mlp");
  job.optimizer.freeze = {"fc9"};
  Replica replica(job);  // a run that goes on is not refused
  replica.host_all();
  const TempFolder place;
  const auto folder = run::RunFolder::create(place.path(), "frozen", OptionSet(job).to_toml());
  try {
    begin_with_initial_weights(replica, job, folder);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("optimizer.freeze has \"fc9\""), std::string::npos)
        << e.what();
  }
}

TEST(Frozen, NoGradientIsComputedForThem) {
  const spec::JobOptions job = job_of("airbench");
  Ingredients parts = complete({}, job);
  FlatModel flat(*parts.model, job.optimizer);
  flat.set_epoch(0);
  EXPECT_FALSE(parameter(*parts.model, "whiten.weight").requires_grad());
  EXPECT_FALSE(parameter(*parts.model, "layers.1.norm1.weight").requires_grad());
  EXPECT_TRUE(parameter(*parts.model, "whiten.bias").requires_grad());
  EXPECT_EQ(flat.layout().segment("whiten.weight").trained_epochs, 0);
  std::vector<float> out(static_cast<size_t>(flat.layout().total_size()), 1.0F);
  const at::Tensor x = at::randn({3, 1, 28, 28}), labels = at::zeros({3}, at::kLong);
  int64_t last = flat.layout().total_size();
  int announced = 0;
  flat.backward(parts.model->loss(parts.model->forward(x), labels, 0).losses.mean(), out,
                [&](int64_t begin) {
                  EXPECT_LT(begin, last);
                  last = begin;
                  ++announced;
                });
  EXPECT_EQ(last, 0);
  EXPECT_GT(announced, 5) << "a frozen parameter holds nothing up";
  const optim::Segment& s = flat.layout().segment("layers.2.norm1.weight");
  for (int64_t i = 0; i < s.size; ++i) EXPECT_EQ(out[static_cast<size_t>(s.offset + i)], 0);
}

TEST(InitialSamples, AreThoseOfTheTrainingSetWithoutAugmentation) {
  spec::JobOptions job = job_of("airbench");
  job.augment.flip = true;
  job.augment.pad = 2;
  Replica replica(job);
  const auto parts = complete({}, job);
  data::LoaderTask task;
  task.training = false;
  task.batch_size = 96;
  data::Loader loader(parts.train_set, parts.augment, job.loader, task);
  const at::Tensor want = nn::whitening_filters(input_of(*loader.next()), 2, 5e-4);
  const std::vector<float> got = values_of(replica, "whiten.weight");
  ASSERT_EQ(static_cast<int64_t>(got.size()), want.numel());
  EXPECT_EQ(0, std::memcmp(got.data(), want.data_ptr<float>(), got.size() * sizeof(float)));
}

}  // namespace
}  // namespace ductile::train
