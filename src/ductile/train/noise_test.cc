// The noise of the gradients, as every run measures it.
#include "ductile/train/noise.h"

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/writer.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/train/replica.h"

namespace ductile::train {
namespace {

using Vec = std::vector<float>;

spec::JobOptions job_of(int64_t ranks) {
  spec::JobOptions job;
  job.data.train_limit = 96;
  job.data.test_limit = 16;
  job.model.name = "mlp";
  job.model.hidden = {16};
  job.loader.threads = 1;
  job.optimizer.lr = 0.05;
  job.train.batch_size = 24;
  job.train.virtual_ranks = ranks;
  job.train.epochs = 1000;
  return job;
}

double square(const Vec& v, size_t size) {
  double sum = 0;
  for (size_t i = 0; i < size; ++i) sum += static_cast<double>(v[i]) * v[i];
  return sum;
}

// The gradient of each rank by itself, and their mean, squared in double, in every eighth update
// and where such a one gave nothing in the next.
TEST(Noise, IsThatOfTheRanksGradientsOneByOne) {
  for (const char* precision : {"fp32", "fp16"}) {
    spec::JobOptions job = job_of(4);
    job.train.precision = precision;
    Replica replica(job), twin(job);
    replica.host_all();
    twin.host_all();
    const auto size = static_cast<size_t>(replica.layout().total_size());
    noise::NoiseEstimator expected;
    int due = 0;  // the next step that is measured
    for (int step = 0; step < 20; ++step) {
      Vec sum(static_cast<size_t>(replica.vector_size())), one = sum, all(size);
      const double scale = twin.state().scaler.scale();
      double squares = 0;
      for (int rank = 0; rank < 4; ++rank) {
        twin.compute(1, one);
        squares += square(one, size) / (scale * scale);
        for (size_t i = 0; i < size; ++i) all[i] += one[i] / static_cast<float>(4 * scale);
      }
      replica.compute(4, sum);
      const int64_t skipped = replica.skipped_steps();
      replica.apply(sum);
      twin.apply(sum);
      if (step >= due && replica.skipped_steps() == skipped) {
        due = step + 8;
        expected.add({.parts = 4,
                      .scale = 1,
                      .mean_square_norm = squares / 4,
                      .square_norm_mean = square(all, size),
                      .steps = 8});
      }
      EXPECT_EQ(replica.noise().has_value(), expected.noise().has_value());
      if (!expected.noise()) continue;
      EXPECT_NEAR(replica.noise()->sqr / expected.noise()->sqr, 1, 1e-4) << precision << step;
      EXPECT_NEAR(replica.noise()->var / expected.noise()->var, 1, 1e-4) << precision << step;
    }
    EXPECT_TRUE(replica.noise().has_value());
  }
}

// With one virtual rank, two updates in a row stand for two ranks. A checkpoint may lie between.
TEST(Noise, OfOneVirtualRankIsThatOfPairsOfUpdates) {
  const TempFolder folder;
  const spec::JobOptions job = job_of(1);
  Replica replica(job), resumed(job);
  const auto size = static_cast<size_t>(replica.layout().total_size());
  noise::NoiseEstimator expected;
  Vec before;
  std::vector<bool> holds_one;
  for (int step = 0; step < 30; ++step) {
    // From step 10 on by another one, which begins with a checkpoint of half a pair.
    Replica& now = step < 10 ? replica : resumed;
    now.host_all();
    if (step == 10) {
      ASSERT_TRUE(holds_one.back());
      ckpt::CheckpointWriter writer(folder.path(), ckpt::WriterOptions{});
      writer.save(replica.step(), replica.values(), replica.state().tensors());
      writer.wait();
      resumed.restore(ckpt::Checkpoint::open(folder.path(), replica.step()));
      EXPECT_EQ(resumed.state().digest(), replica.state().digest());
    }
    Vec sum(static_cast<size_t>(now.vector_size()));
    now.compute(1, sum);
    now.apply(sum);
    sum.resize(size);
    if (step % 9 == 1) {  // the pairs begin eight updates after the second of the last one
      Vec mean(size);
      for (size_t i = 0; i < size; ++i) mean[i] = (sum[i] + before[i]) / 2;
      expected.add({.parts = 2,
                    .scale = 2,
                    .mean_square_norm = (square(sum, size) + square(before, size)) / 2,
                    .square_norm_mean = square(mean, size),
                    .steps = 4});
    }
    before = sum;
    ASSERT_EQ(now.noise().has_value(), expected.noise().has_value());
    if (expected.noise()) {
      // The square is 0 where the noise of few pairs is above it.
      const double bound = 1e-4 * expected.noise()->var;
      EXPECT_NEAR(now.noise()->sqr, expected.noise()->sqr, bound) << step;
      EXPECT_NEAR(now.noise()->var, expected.noise()->var, bound) << step;
    }
    holds_one.push_back(!now.state().extras().at("noise").arrays.empty());
    EXPECT_EQ(holds_one.back(), step % 9 == 0) << "memory only where it is needed: " << step;
  }
}

// The loss scale of fp16 may double between the two.
TEST(Noise, APairCountsByTheLossScaleThatEachGradientWasMadeWith) {
  spec::JobOptions job = job_of(1);
  job.train.precision = "fp16";
  Replica replica(job);
  replica.host_all();
  replica.state().scaler = optim::LossScaler(optim::LossScaler::State{1024, 1999, 0});
  const auto size = static_cast<size_t>(replica.layout().total_size());
  std::vector<Vec> gradients;
  for (const double scale : {1024, 2048}) {
    Vec sum(static_cast<size_t>(replica.vector_size()));
    replica.compute(1, sum);
    ASSERT_EQ(replica.state().scaler.scale(), scale);
    replica.apply(sum);
    sum.resize(size);
    for (float& g : sum) g /= static_cast<float>(scale);
    gradients.push_back(sum);
  }
  Vec mean(size);
  for (size_t i = 0; i < size; ++i) mean[i] = (gradients[0][i] + gradients[1][i]) / 2;
  noise::NoiseEstimator expected;
  expected.add({.parts = 2,
                .scale = 2,
                .mean_square_norm = (square(gradients[0], size) + square(gradients[1], size)) / 2,
                .square_norm_mean = square(mean, size),
                .steps = 4});
  EXPECT_NEAR(replica.noise()->sqr, expected.noise()->sqr, 1e-4 * expected.noise()->var);
  EXPECT_NEAR(replica.noise()->var, expected.noise()->var, 1e-4 * expected.noise()->var);
}

// Batches of 9 samples, of which two ranks have 6 and 3 and the others none; but each fourth is
// full.
class WithRests final : public StepMethod {
 public:
  std::optional<Samples> samples(const JobState& state, const StepKind&) const override {
    Samples out;
    out.per_rank = kPerRank;
    out.next_cursor = state.counters.cursor;
    const int64_t count = state.counters.step % 4 == 3 ? 24 : 9;
    for (int64_t i = 0; i < count; ++i) out.indices.push_back(i);
    return out;
  }
  at::Tensor contribute(RankContext& rank) override {
    const data::Batch& batch = rank.batch();
    if (batch.num_samples == 0) return {};
    const double share = static_cast<double>(batch.num_samples) / kPerRank;
    const at::Tensor loss = rank.mean(rank.forward(batch).losses).mul(share);
    rank.figure(kLoss, loss.item<double>());
    rank.figure(kSamplesBackward, static_cast<double>(batch.num_samples));
    return loss;
  }
  Verdict judge(const JobState&, const StepKind&, const std::map<std::string, double>& sums,
                int64_t) const override {
    const double parts = sums.at(std::string(kSamplesBackward)) / kPerRank;
    return {true, parts, sums.at(std::string(kLoss)) / parts};
  }

 private:
  static constexpr int64_t kPerRank = 6;
};

// Parts that are not equal would bias the estimate.
TEST(Noise, IsMeasuredInFullBatchesAlone) {
  const spec::JobOptions job = job_of(4);
  Replica replica(job, [&] {
    Ingredients given;
    given.method = std::make_unique<WithRests>();
    return complete(std::move(given), job);
  });
  replica.host_all();
  Vec sum(static_cast<size_t>(replica.vector_size()));
  for (int step = 0; step < 4; ++step) {
    EXPECT_FALSE(replica.noise().has_value()) << step;
    replica.compute(4, sum);
    replica.apply(sum);
  }
  EXPECT_TRUE(replica.noise().has_value());
}

constexpr double kMean = 0.1, kSigma = 0.3;

// The loss of a rank is a product with a vector of known mean and deviation, drawn anew for each
// rank and step, which is its gradient then.
class KnownNoise final : public StepMethod {
 public:
  at::Tensor contribute(RankContext& rank) override {
    rank.forward(rank.batch());
    rank.figure(kSamplesBackward, static_cast<double>(rank.batch().num_samples));
    Rng rng(static_cast<uint64_t>(rank.state().counters.step), static_cast<uint64_t>(rank.rank()));
    at::Tensor loss = at::zeros({});
    for (const nn::NamedTensor& p : rank.model().parameters()) {
      at::Tensor g = at::zeros(p.tensor.sizes());
      float* values = g.data_ptr<float>();
      for (int64_t i = 0; i < g.numel(); ++i)
        values[i] = static_cast<float>(kMean + kSigma * rng.normal());
      loss = loss.add(p.tensor.mul(g).sum());
    }
    return loss;
  }
};

// |G|^2 and tr(Sigma) within five deviations of their estimates' means, with d coordinates and n
// measured steps of V ranks.
TEST(Noise, EstimatesAreUnbiased) {
  const spec::JobOptions job = job_of(4);
  Replica replica(job, [&] {
    Ingredients given;
    given.method = std::make_unique<KnownNoise>();
    return complete(std::move(given), job);
  });
  replica.host_all();
  constexpr int kSteps = 160, kMeasured = kSteps / kNoiseEvery, kRanks = 4;
  Vec sum(static_cast<size_t>(replica.vector_size()));
  for (int step = 0; step < kSteps; ++step) {
    replica.compute(kRanks, sum);
    replica.apply(sum);
  }
  const auto d = static_cast<double>(replica.num_parameters());
  const double rank = kSigma * kSigma;  // variance of a coordinate of a rank's gradient
  const double whole = rank / kRanks;   // of the mean: of a batch of train.batch_size
  const double sqr = d * kMean * kMean, var = d * whole;
  // The mean's coordinates m + e, e ~ N(0, whole): deviations of (|m + e|^2 - var) and of the
  // sample variance, the weights of the average being nearly equal.
  const double sqr_deviation =
      std::sqrt((4 * sqr * whole + 2 * d * whole * whole * kRanks / (kRanks - 1)) / kMeasured);
  const double var_deviation = var * std::sqrt(2 / (d * (kRanks - 1) * kMeasured));
  EXPECT_NEAR(replica.noise()->sqr, sqr, 5 * sqr_deviation);
  EXPECT_NEAR(replica.noise()->var, var, 5 * var_deviation);
  EXPECT_LT(5 * sqr_deviation, 0.2 * sqr) << "the bound says something";
}

}  // namespace
}  // namespace ductile::train
