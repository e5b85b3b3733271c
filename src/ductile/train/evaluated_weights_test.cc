// Which weights are evaluated and deployed, and that they have the statistics that belong to them.
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/initial_weights.h"
#include "ductile/train/replica.h"
#include "ductile/train/testing/watched_run.h"

namespace ductile::train {
namespace {

spec::JobOptions job_of(const char* model, const char* optimizer) {
  spec::JobOptions job;
  job.data.train_limit = 96;
  job.data.test_limit = 32;
  job.model.name = model;
  job.model.width = 8;
  job.model.hidden = {16};
  job.loader.threads = 1;
  job.optimizer.name = optimizer;
  job.optimizer.lr = 0.02;
  job.optimizer.neumann.warmup_epochs = 0;
  job.train.epochs = 2;
  job.train.batch_size = 24;
  job.train.virtual_ranks = 2;
  job.train.eval_every_epochs = 100;
  return job;
}

void train_step(Replica& replica) {
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  replica.compute(replica.num_ranks(), sum);
  replica.apply(sum);
}

std::vector<float> values_of(const ckpt::SafetensorsFile& file, const std::string& name) {
  const ckpt::TensorInfo* info = file.find(name);
  if (info == nullptr) return {};
  const std::span<const std::byte> bytes = file.bytes(*info);
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(EvaluatedWeights, HaveStatisticsOfTheirOwnAndLeaveTheStateAlone) {
  for (const char* rule : {"schedule_free", "neumann"}) {
    const TempFolder folder;
    spec::JobOptions job = job_of("cnn", rule);
    Replica replica(job), twin(job);
    replica.host_all();
    twin.host_all();
    for (int i = 0; i < 5; ++i) {
      train_step(replica);
      train_step(twin);
    }
    const std::string digest = replica.state().digest().value();
    const Evaluation first = replica.evaluate([](int64_t) {});
    EXPECT_EQ(replica.state().digest(), digest);
    EXPECT_EQ(replica.evaluate([](int64_t) {}).loss, first.loss);
    EXPECT_EQ(twin.evaluate([](int64_t) {}).loss, first.loss);
    replica.write_model(folder.path() / "model.safetensors", replica.deployed());
    EXPECT_EQ(replica.state().digest(), digest);
    train_step(replica);
    train_step(twin);
    EXPECT_EQ(replica.state().digest(), twin.state().digest()) << "evaluations leave no trace";

    // The file has neither the weights nor the statistics that were trained.
    const ckpt::SafetensorsFile file(folder.path() / "model.safetensors");
    job.train.statistics_batches = 0;
    Replica plain(job);
    plain.host_all();
    for (int i = 0; i < 5; ++i) train_step(plain);
    EXPECT_NE(plain.evaluate([](int64_t) {}).loss, first.loss);
    bool any = false;
    for (const FlatModel::Entry& b : plain.state().flat.buffers()) {
      if (!b.name.ends_with("running_mean")) continue;
      any = true;
      const std::vector<float> saved = values_of(file, b.name);
      ASSERT_EQ(static_cast<int64_t>(saved.size()), b.size);
      double difference = 0;
      for (int64_t i = 0; i < b.size; ++i) {
        const float trained = plain.state().flat.buffer_values()[static_cast<size_t>(b.offset + i)];
        difference += std::fabs(saved[static_cast<size_t>(i)] - trained);
      }
      EXPECT_GT(difference, 0) << b.name;
    }
    EXPECT_TRUE(any);
  }
}

// The slow twin: the running statistics that one batch at a time leaves behind zeros, and the mean
// of them. An average of a rule's weights has no statistics of its own either, since training
// measures those of the displaced ones.
TEST(EvaluatedWeights, HaveTheMeanStatisticsOfTheFirstTrainingBatches) {
  for (const char* rule : {"schedule_free", "neumann", "schedule_free with an average"}) {
    const TempFolder folder;
    const std::string name = rule;
    spec::JobOptions job = job_of("cnn", name.substr(0, name.find(' ')).c_str());
    if (name.ends_with("average")) job.train.ema_decay = 0.7;
    job.train.statistics_batches = name == "neumann" ? 100 : 3;
    const int batches = name == "neumann" ? 8 : 3;  // 96 samples by 12: no more than all of them
    Replica replica(job);
    replica.host_all();
    for (int i = 0; i < 5; ++i) train_step(replica);
    replica.write_model(folder.path() / "model.safetensors", replica.deployed());
    const ckpt::SafetensorsFile file(folder.path() / "model.safetensors");

    testing::Bench twin(job);
    std::ranges::copy(replica.state().evaluation_weights().weights,
                      twin.state.flat.weights().begin());
    const std::span<float> buffers = twin.state.flat.buffer_values();
    std::vector<double> sum(buffers.size());
    data::LoaderTask task;
    task.seed = static_cast<uint64_t>(job.seed);
    task.batch_size = 12;  // of a virtual rank
    data::Loader loader(twin.parts.train_set, twin.parts.augment, job.loader, task);
    const at::NoGradGuard no_grad;
    for (int i = 0; i < batches; ++i) {
      std::ranges::fill(buffers, 0.0F);
      forward(*twin.parts.model, *loader.next());
      for (size_t k = 0; k < sum.size(); ++k) sum[k] += buffers[k] / 0.1 / batches;
    }
    for (const FlatModel::Entry& b : twin.state.flat.buffers()) {
      const std::vector<float> saved = values_of(file, b.name);
      ASSERT_EQ(static_cast<int64_t>(saved.size()), b.size);
      for (size_t i = 0; i < saved.size(); ++i) {
        const double want = sum[static_cast<size_t>(b.offset) + i];
        EXPECT_NEAR(saved[i], want, 2e-4 * (1 + std::fabs(want))) << rule << " " << b.name;
      }
    }
  }
}

// A job with a task, of which nothing is asked but its model.
class OnlyAModel final : public Task {
 public:
  explicit OnlyAModel(const char* model) { job_.model.name = model; }

  const data::DatasetInfo& train_info() const override { return info_; }
  const data::DatasetInfo& test_info() const override { return info_; }
  SampleOrder order() const override { return SampleOrder::sequential; }
  const std::vector<std::string>& metrics() const override { return metrics_; }
  std::unique_ptr<nn::Model> make_model(uint64_t) override { return complete({}, job_).model; }
  void host(const comm::LeafRange&) override {}
  TaskLoss loss(const RankSamples&) override { return {}; }
  Evaluation evaluate(const std::function<void(int64_t)>&) override { return {}; }
  void take_weights(std::span<const ckpt::TensorView>, const std::string&) override {}

 private:
  spec::JobOptions job_ = job_of("cnn", "sgd");
  data::DatasetInfo info_ = {.size = 96};
  std::vector<std::string> metrics_;
};

// A task has no data of ours to compute statistics from. Rules differ in when they begin to mean
// other weights.
TEST(EvaluatedWeights, OfATaskWithRunningStatisticsAreRefusedBeforeTheFirstStep) {
  const TempFolder temp;
  const run::RunFolder folder = run::RunFolder::create(temp.path(), "job");
  const auto refusal = [&](const char* model, const char* rule, int64_t batches) -> std::string {
    spec::JobOptions job = job_of(model, rule);
    job.train.statistics_batches = batches;
    const Recipe recipe = [&] {
      Ingredients given;
      given.task = std::make_shared<OnlyAModel>(model);
      return complete(std::move(given), job);
    };
    Replica replica(job, recipe);  // as of a run that goes on, which an earlier version accepted
    try {
      begin_with_initial_weights(replica, job, folder);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "";
  };
  for (const optim::OptimizerEntry& entry : optim::optimizers()) {
    const std::string name(entry.name);
    const bool other = name == "schedule_free" || name == "neumann";
    EXPECT_EQ(
        refusal("cnn", name.c_str(), 32).find("train.statistics_batches = 0") != std::string::npos,
        other)
        << name;
    EXPECT_EQ(refusal("cnn", name.c_str(), 0), "") << name;
    EXPECT_EQ(refusal("mlp", name.c_str(), 32), "") << name << ": no batch norm";
  }
}

// With nothing displaced there is nothing to compute: the statistics are the trained ones.
TEST(EvaluatedWeights, OfARuleThatTrainsThemAreThoseOfTheState) {
  const TempFolder folder;
  Replica replica(job_of("cnn", "sgd"));
  replica.host_all();
  for (int i = 0; i < 3; ++i) train_step(replica);
  replica.write_model(folder.path() / "model.safetensors", replica.deployed());
  const ckpt::SafetensorsFile file(folder.path() / "model.safetensors");
  FlatModel& flat = replica.state().flat;
  for (const FlatModel::Entry& b : flat.buffers()) {
    const std::vector<float> saved = values_of(file, b.name);
    for (int64_t i = 0; i < b.size; ++i) {
      EXPECT_EQ(saved[static_cast<size_t>(i)],
                flat.buffer_values()[static_cast<size_t>(b.offset + i)]);
    }
  }
}

TEST(EvaluatedWeights, TheTailAverageIsTheMeanOverTheEndOfTheRun) {
  spec::JobOptions job = job_of("cnn", "sgd");
  job.train.tail_average = 0.5;  // 4 of 8 updates
  Replica replica(job);
  replica.host_all();
  FlatModel& flat = replica.state().flat;
  const size_t size = flat.weights().size(), buffers = flat.buffer_values().size();
  std::vector<double> sum(size + buffers);
  for (int step = 0; step < 8; ++step) {
    train_step(replica);
    for (size_t i = 0; i < sum.size() && step >= 4; ++i) {
      sum[i] += i < size ? flat.weights()[i] : flat.buffer_values()[i - size];
    }
    const auto average = [&](size_t i) {
      return i < size ? replica.state().average.span()[i]
                      : replica.state().buffer_average.span()[i - size];
    };
    if (step < 4) {
      EXPECT_TRUE(std::ranges::equal(replica.state().average.span(), flat.weights()));
      continue;
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_NEAR(average(i), sum[i] / (step - 3), 1e-6 * (1 + std::fabs(sum[i]))) << step;
    }
  }
}

// Steps that choose their examples are of several lengths, and a fp16 step may be none.
TEST(EvaluatedWeights, TheTailAverageCountsUpdatesWhereStepsAreOfSeveralLengths) {
  spec::JobOptions job = job_of("mlp", "sgd");
  job.train.method = "infobatch";
  job.train.tail_average = 0.5;
  job.train.epochs = 4;
  Replica replica(job);
  replica.host_all();
  const std::span<const float> weights = replica.state().flat.weights();
  std::vector<double> sum(weights.size());
  double count = 0;
  while (replica.updates() < replica.total_updates()) {
    train_step(replica);
    const auto& part = replica.state().extras().at("tail_average").values;
    const double updates = part.at("updates");
    ASSERT_TRUE(updates == 0 || updates == count + 1) << updates << " after " << count;
    count = updates;
    for (size_t i = 0; i < sum.size() && updates > 0; ++i) {
      sum[i] += weights[i];
      ASSERT_NEAR(replica.state().average.span()[i], sum[i] / updates,
                  1e-5 * (1 + std::fabs(sum[i])));
    }
  }
  EXPECT_GT(count, 2);
}

}  // namespace
}  // namespace ductile::train
