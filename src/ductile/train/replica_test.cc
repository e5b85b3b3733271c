#include "ductile/train/replica.h"

#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"

namespace ductile::train {
namespace {

using Vec = std::vector<float>;

spec::JobOptions job_of(const std::string& model, const fs::path& folder) {
  spec::JobOptions job;
  job.data.train_limit = 96;
  job.data.test_limit = 32;
  job.model.name = model;
  job.loader.threads = 1;
  job.train.batch_size = 24;
  if (model == "gpt") {
    std::vector<uint16_t> tokens(20'000);
    Rng rng(1, 2);
    for (uint16_t& t : tokens) t = static_cast<uint16_t>(rng.below(50));
    const fs::path file = folder / "train.bin";
    write_file_atomic(
        file, std::string_view(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()));
    fs::copy_file(file, folder / "test.bin", fs::copy_options::overwrite_existing);
    job.data.format = "tokens";
    job.data.path = file.string();
    job.data.test_path = (folder / "test.bin").string();
    job.data.tokens.sequence_length = 16;
    job.model.layers = 2;
    job.model.dim = 32;
    job.model.vocab_size = 50;
  }
  return job;
}

TEST(Replica, BeginsAsManyEpochsAsMaxStepsAllows) {
  spec::JobOptions job = job_of("mlp", {});  // 4 updates in an epoch
  EXPECT_EQ(Replica(job).num_epochs(), 10);
  job.train.max_steps = 8;
  EXPECT_EQ(Replica(job).num_epochs(), 2);
  job.train.max_steps = 9;
  EXPECT_EQ(Replica(job).num_epochs(), 3);
  job.train.max_steps = 1000;
  EXPECT_EQ(Replica(job).num_epochs(), 10);
}

// The sum that grows from its end during the backward pass is the one made at once, and what was
// called final stayed.
TEST(Replica, ASumAnnouncedEarlyHasTheSameBits) {
  const TempFolder folder;
  for (const char* model : {"mlp", "cnn", "resnet8", "gpt"}) {
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      for (const int64_t ranks : {1, 3, 4}) {
        spec::JobOptions job = job_of(model, folder.path());
        job.train.precision = precision;
        job.train.virtual_ranks = ranks;
        Replica plain(job), early(job);
        plain.host_all();
        early.host_all();
        for (int step = 0; step < 2; ++step) {
          Vec want(static_cast<size_t>(plain.vector_size())), got = want, seen = want;
          plain.compute(ranks, want);
          int64_t from = early.figures_begin();
          int calls = 0;
          early.compute(ranks, got, [&](int64_t begin) {
            ASSERT_LE(begin, from);
            std::copy(got.begin() + begin, got.begin() + from, seen.begin() + begin);
            if (begin == 0)
              std::copy(got.begin() + early.figures_begin(), got.end(),
                        seen.begin() + early.figures_begin());
            from = begin;
            ++calls;
          });
          EXPECT_EQ(from, 0);
          EXPECT_GE(calls, 2);
          const size_t bytes = want.size() * sizeof(float);
          ASSERT_EQ(std::memcmp(got.data(), want.data(), bytes), 0)
              << model << " " << precision << " " << ranks;
          ASSERT_EQ(std::memcmp(seen.data(), want.data(), bytes), 0)
              << model << " " << precision << " " << ranks;
          plain.apply(want);
          early.apply(got);
        }
      }
    }
  }
}

TEST(Replica, AnErrorWhileTheBackwardPassGoesComesOut) {
  const TempFolder folder;
  Replica replica(job_of("cnn", folder.path()));
  replica.host_all();
  Vec out(static_cast<size_t>(replica.vector_size())), want = out;
  EXPECT_THROW(replica.compute(1, out, [](int64_t) { fail(ErrorCode::peer_lost, "gone"); }), Error);
  // The state is that before the step: the step can be computed again.
  Replica other(job_of("cnn", folder.path()));
  other.host_all();
  replica.host_all();
  replica.compute(1, out, [](int64_t) {});
  other.compute(1, want);
  EXPECT_EQ(out, want);
}

// The options of a checkpoint's job may stand where an earlier version had them.
TEST(Replica, GoesOnFromTheCheckpointOfAnEarlierVersion) {
  const TempFolder folder;
  spec::JobOptions job = job_of("mlp", folder.path());
  job.optimizer.name = "adamw";
  job.optimizer.adam.beta2 = 0.95;
  const Replica replica(job);
  nlohmann::json saved = OptionSet(job).to_json();
  nlohmann::json& optimizer = saved["optimizer"];
  optimizer["beta1"] = optimizer["adam"]["beta1"];
  optimizer["beta2"] = optimizer["adam"]["beta2"];
  optimizer["eps"] = optimizer["adam"]["eps"];
  for (const char* group : {"sgd", "adam", "lars"}) optimizer.erase(group);
  EXPECT_NO_THROW(replica.check_same_job(saved));
  optimizer["beta2"] = 0.5;
  try {
    replica.check_same_job(saved);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("optimizer.adam.beta2"), std::string::npos) << e.what();
  }
}

TEST(Replica, NamesAnOptionOnceOfWhichSeveralPlacesWereChanged) {
  const TempFolder folder;
  spec::JobOptions job = job_of("mlp", folder.path());
  const Replica replica(job);
  job.tune.lr = {1e-4, 0.5};
  job.tune.momentum = {0, 0.9};
  job.model.hidden = {1, 2, 3, 4};
  job.optimizer.lr *= 2;
  try {
    replica.check_same_job(OptionSet(job).to_json());
    FAIL() << "it is another job";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(
                  "the result: model.hidden, optimizer.lr, tune.lr, tune.momentum; put"),
              std::string::npos)
        << e.what();
  }
}

void train_steps(Replica& replica, int steps) {
  replica.host_all();
  Vec sum(static_cast<size_t>(replica.vector_size()));
  for (int i = 0; i < steps; ++i) {
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
  }
}

// Forward, and twice that much backward; a dense layer multiplies each weight once.
TEST(Replica, CountsTheOperationsOfItsModel) {
  const TempFolder folder;
  spec::JobOptions job = job_of("mlp", folder.path());
  job.model.hidden = {20};
  Replica replica(job);
  train_steps(replica, 2);
  const auto weights = static_cast<double>(replica.num_parameters() - 20 - 10);
  EXPECT_EQ(replica.state().counters.flops, 3 * (2 * weights) * 2 * 24);
}

TEST(Replica, CountingTheOperationsChangesNoBit) {
  const TempFolder folder;
  for (const char* model : {"cnn", "gpt"}) {
    spec::JobOptions job = job_of(model, folder.path());
    job.model.dropout = 0.1;
    Replica counted(job), plain(job, [&] {
      Ingredients given;
      given.flops_per_sample = 1;  // known: so the model is not run for it
      return complete(std::move(given), job);
    });
    train_steps(counted, 2);
    train_steps(plain, 2);
    EXPECT_GT(counted.state().counters.flops, plain.state().counters.flops);
    counted.state().counters.flops = plain.state().counters.flops;
    EXPECT_EQ(counted.state().digest(), plain.state().digest()) << model;
  }
}

// A model that can do with batches alone.
class Sociable : public nn::Model {
 public:
  explicit Sociable(std::unique_ptr<nn::Model> inner) : inner_(std::move(inner)) {}
  at::Tensor forward(const at::Tensor& x) override {
    if (x.size(0) == 1) throw std::runtime_error("a batch of one");
    return inner_->forward(x);
  }
  std::vector<nn::NamedTensor> parameters() override { return inner_->parameters(); }

 private:
  std::unique_ptr<nn::Model> inner_;
};

// There would be no part of the state to hold.
TEST(Replica, AModelWithoutParametersIsRefused) {
  class Constant : public nn::Model {
   public:
    at::Tensor forward(const at::Tensor& x) override { return at::zeros({x.size(0), 10}); }
  };
  const TempFolder folder;
  const spec::JobOptions job = job_of("mlp", folder.path());
  try {
    Replica replica(job, [&] {
      Ingredients given = complete({}, job);
      given.model = std::make_unique<Constant>();
      return given;
    });
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("no parameters"), std::string::npos) << e.what();
  }
}

TEST(Replica, AModelThatCannotRunOnOneSampleIsTrainedWithoutItsOperations) {
  const TempFolder folder;
  const spec::JobOptions job = job_of("mlp", folder.path());
  Replica replica(job, [&] {
    Ingredients given = complete({}, job);
    given.flops_per_sample = 0;
    given.model = std::make_unique<Sociable>(std::move(given.model));
    return complete(std::move(given), job);
  });
  train_steps(replica, 1);
  EXPECT_EQ(replica.updates(), 1);
  EXPECT_EQ(replica.state().counters.flops, 0);
}

}  // namespace
}  // namespace ductile::train
