// A batch that changes in the middle of an epoch: the epochs, the length of the run, its schedule
// and its tail.
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/data/cursor.h"
#include "ductile/optim/rate_control.h"
#include "ductile/optim/schedule.h"
#include "ductile/train/replica.h"
#include "ductile/train/task.h"

namespace ductile::train {
namespace {

using Batches = std::map<int64_t, int64_t>;  // by the number of updates from which on they are used

// Follows the schedule, with other batches from some updates on.
class Orders final : public optim::RateControl {
 public:
  Orders(const spec::JobOptions& job, Batches batches)
      : schedule_(optim::make_schedule_control(job)), batches_(std::move(batches)) {}

  optim::Hyper next(const optim::Observed& observed, nlohmann::json& memory) const override {
    optim::Hyper out = schedule_->next(observed, memory);
    for (const auto& [from, batch] : batches_)
      if (observed.updates >= from) out.batch_size = batch;
    return out;
  }

 private:
  std::unique_ptr<optim::RateControl> schedule_;
  Batches batches_;
};

spec::JobOptions job_of(int64_t samples, int64_t batch, int64_t epochs) {
  spec::JobOptions job;
  job.data.train_limit = samples;
  job.data.test_limit = 16;
  job.model.name = "mlp";
  job.model.hidden = {8};
  job.loader.threads = 1;
  job.optimizer.lr = 0.02;
  job.train.epochs = epochs;
  job.train.batch_size = batch;
  job.train.virtual_ranks = 2;
  job.train.eval_every_epochs = 100;
  return job;
}

Recipe with_batches(const spec::JobOptions& job, const Batches& batches) {
  return [=] {
    Ingredients given;
    given.rate_control = std::make_unique<Orders>(job, batches);
    return complete(std::move(given), job);
  };
}

void train_step(Replica& replica) {
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  replica.compute(replica.num_ranks(), sum);
  replica.apply(sum);
}

std::vector<float> values_of(Replica& replica, const char* name) {
  const optim::Segment& s = replica.layout().segment(name);
  const std::span<const float> weights = replica.state().flat.weights();
  return {weights.begin() + s.offset, weights.begin() + s.offset + s.size};
}

// The epoch in which the next step would train.
int64_t next_epoch(const Replica& replica, int64_t samples) {
  const JobState& state = replica.state();
  return data::samples_of_step(state.counters.cursor, state.hyper.batch_size, samples).epoch;
}

TEST(GrowingBatch, WithoutOneTheEpochIsTheShareOfItsStepsToTheBit) {
  Replica replica(job_of(100, 14, 2));  // 7 steps an epoch, and two samples are left
  replica.host_all();
  for (int64_t step = 0; step < 14; ++step) {
    EXPECT_EQ(replica.epoch(), static_cast<double>(step) / 7);
    EXPECT_EQ(replica.total_updates(), 14);
    train_step(replica);
  }
  EXPECT_EQ(replica.epoch(), 2);
}

// 52 of 52 samples that are left; 30 twice, of which the second time is over the epoch's end; and
// 96, more than are left. What was frozen for good stays so.
TEST(GrowingBatch, TheEpochNeverFallsAndTheLastOneIsTheLast) {
  for (const int64_t batch : {52, 30, 96}) {
    SCOPED_TRACE(batch);
    spec::JobOptions job = job_of(100, 4, 2);
    job.optimizer.freeze = {"fc1.weight:0.3"};
    Replica replica(job, with_batches(job, {{12, batch}}));
    replica.host_all();
    double before = 0;
    std::vector<float> frozen;
    while (replica.updates() < replica.total_updates()) {
      ASSERT_LT(next_epoch(replica, 100), 2) << replica.updates();
      if (frozen.empty() && replica.epoch() >= 0.3) frozen = values_of(replica, "fc1.weight");
      train_step(replica);
      EXPECT_GE(replica.epoch(), before) << replica.updates();
      before = replica.epoch();
    }
    EXPECT_GT(replica.updates(), 12);
    EXPECT_EQ(replica.state().hyper.batch_size, batch);
    EXPECT_EQ(next_epoch(replica, 100), 2) << "all samples were trained that fill a batch";
    EXPECT_EQ(replica.epoch(), 2);
    EXPECT_EQ(values_of(replica, "fc1.weight"), frozen);
  }
}

// A job with a task that writes down which epoch it is told.
class Listening final : public Task {
 public:
  explicit Listening(spec::JobOptions job) : job_(std::move(job)) {}

  const data::DatasetInfo& train_info() const override { return info_; }
  const data::DatasetInfo& test_info() const override { return info_; }
  SampleOrder order() const override { return SampleOrder::sequential; }
  const std::vector<std::string>& metrics() const override { return metrics_; }
  std::unique_ptr<nn::Model> make_model(uint64_t) override {
    auto model = complete({}, job_).model;
    weights_.clear();
    for (const nn::NamedTensor& p : model->parameters()) weights_.push_back(p.tensor);
    return model;
  }
  void host(const comm::LeafRange&) override {}
  TaskLoss loss(const RankSamples& samples) override {
    told = samples.epoch_done;
    at::Tensor loss;
    for (const at::Tensor& w : weights_) {
      const at::Tensor mean = w.square().mean();
      loss = loss.defined() ? loss.add(mean) : mean;
    }
    return {.loss = std::move(loss), .metrics = {}};
  }
  Evaluation evaluate(const std::function<void(int64_t)>&) override { return {}; }
  void take_weights(std::span<const ckpt::TensorView>, const std::string&) override {}

  double told = 0;

 private:
  spec::JobOptions job_;
  std::vector<at::Tensor> weights_;
  data::DatasetInfo info_ = {.size = 100};
  std::vector<std::string> metrics_;
};

// In the middle of an epoch, of which 12 batches of 4 are trained, and over the end of others.
TEST(GrowingBatch, ATaskIsToldTheEpochThatTheRunSaysAfterTheStep) {
  for (const int64_t batch : {4, 52, 30, 96}) {
    SCOPED_TRACE(batch);
    const spec::JobOptions job = job_of(100, 4, 3);
    const auto task = std::make_shared<Listening>(job);
    Replica replica(job, [&] {
      Ingredients given;
      given.task = task;
      given.rate_control = std::make_unique<Orders>(job, Batches{{12, batch}});
      return complete(std::move(given), job);
    });
    replica.host_all();
    while (replica.updates() < replica.total_updates()) {
      train_step(replica);
      const int64_t next = replica.state().hyper.batch_size;
      if (next != replica.hyper().batch_size) continue;  // from then on epochs are counted by it
      EXPECT_DOUBLE_EQ(task->told, replica.epoch()) << replica.updates();
    }
    EXPECT_EQ(task->told, 3);
  }
}

// As if nothing had happened to the batch: 40 updates are the run.
TEST(GrowingBatch, AScheduleThatEndsByUpdatesGoesByUpdates) {
  for (const char* schedule : {"cosine", "linear", "trapezoid"}) {
    SCOPED_TRACE(schedule);
    spec::JobOptions job = job_of(96, 4, 10);
    job.schedule.name = schedule;
    job.train.max_steps = 40;
    Replica replica(job, with_batches(job, {{20, 32}}));
    replica.host_all();
    double before = job.optimizer.lr;
    for (int64_t step = 0; step < 40; ++step) {
      ASSERT_EQ(replica.total_updates(), 40);
      train_step(replica);
      const double lr = replica.hyper().lr;
      EXPECT_LE(lr, before) << step;
      before = lr;
      if (job.schedule.name == "trapezoid" && step > 32) continue;  // its steps are smaller now
      const auto at = static_cast<double>(step);
      EXPECT_NEAR(lr, optim::learning_rate(job.schedule, job.optimizer.lr, at, 40, 24), 1e-9)
          << step;
    }
    EXPECT_LT(before, 0.2 * job.optimizer.lr);
  }
}

// 60 updates would end the run after two and a half epochs of 24 steps. Batches of 48 from update
// 30 on end it by its epochs, at update 33.
TEST(GrowingBatch, AScheduleGoesByTheEndThatIsNearer) {
  spec::JobOptions job = job_of(96, 4, 3);
  job.schedule.name = "linear";
  job.train.max_steps = 60;
  Replica replica(job, with_batches(job, {{30, 48}}));
  replica.host_all();
  std::vector<double> shares;
  while (replica.updates() < replica.total_updates()) {
    train_step(replica);
    shares.push_back(1 - replica.hyper().lr / job.optimizer.lr);
  }
  ASSERT_EQ(shares.size(), 33U);
  for (size_t step = 0; step <= 30; ++step)
    EXPECT_NEAR(shares[step], static_cast<double>(step) / 60, 1e-9) << step;
  EXPECT_NEAR(shares[31], 2.0 / 3, 1e-9);
  EXPECT_NEAR(shares[32], 2.5 / 3, 1e-9);
}

// What is left of the epoch after the large batch fills small ones, and not another large one: to
// a batch that stays large the epoch would be over.
TEST(GrowingBatch, ABatchThatShrinksHasTheRateOfItsOwnPosition) {
  spec::JobOptions job = job_of(100, 4, 2);
  job.schedule.name = "linear";
  job.train.rate_control = "goodput";
  job.train.noise.patience = 1;
  job.train.noise.max_batch = 60;
  Replica replica(job);
  replica.host_all();
  double before = job.optimizer.lr;
  bool was_large = false;
  while (replica.updates() < replica.total_updates()) {
    const int64_t batch = replica.hyper().batch_size;
    if (batch == 4) {
      EXPECT_LE(replica.hyper().lr, before) << replica.updates();
      EXPECT_GT(replica.hyper().lr, 0) << replica.updates();
      before = replica.hyper().lr;
    }
    was_large = was_large || batch == 60;
    replica.wish_batch(replica.updates() == 7 ? 60 : 4);
    train_step(replica);
  }
  EXPECT_TRUE(was_large);
}

TEST(GrowingBatch, TheTailThatHasBegunGoesOnToTheEnd) {
  spec::JobOptions job = job_of(96, 4, 10);
  job.train.max_steps = 40;
  job.train.tail_average = 0.3;
  for (const int64_t grows_at : {20, 32}) {
    Replica replica(job, with_batches(job, {{grows_at, 32}}));
    replica.host_all();
    double updates = 0;
    for (int64_t step = 0; step < 40; ++step) {
      train_step(replica);
      const double now = replica.state().extras().at("tail_average").values.at("updates");
      EXPECT_EQ(now, step < 28 ? 0 : updates + 1) << grows_at << " " << step;
      updates = now;
    }
    EXPECT_EQ(updates, 12);
  }
}

}  // namespace
}  // namespace ductile::train
