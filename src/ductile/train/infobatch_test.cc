// InfoBatch against its definition and a loop written out in full.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/optim/schedule.h"
#include "ductile/train/scored_impl.h"
#include "ductile/train/testing/watched_run.h"

namespace ductile::train {
namespace {

using testing::Bench;
using testing::expect_same_weights;
using testing::Indices;
using testing::selection_job;
using testing::WatchedRun;

TEST(InfoBatch, SkipsAShareOfTheSamplesBelowTheMeanAndWeighsTheirOthers) {
  Rng rng(11);
  for (int round = 0; round < 100; ++round) {
    spec::InfoBatchOptions options;
    options.ratio = round % 3 == 0 ? 0.5 : 0.3;
    std::vector<float> scores(1 + rng.below(60));
    for (float& s : scores) s = round % 5 == 0 ? 3.0F : rng.uniform();
    if (round % 7 == 0) scores[0] = std::numeric_limits<float>::infinity();
    const int64_t epoch = rng.below(10);
    std::vector<float> weights(scores.size(), 1.0F);
    weigh_infobatch(options, 1, 10, epoch, scores, weights);
    double sum = 0, finite = 0;
    for (const float s : scores) {
      if (std::isinf(s)) continue;
      sum += s;
      ++finite;
    }
    int64_t below = 0, skipped = 0, raised = 0;
    double worst_kept = 0, best_skipped = 1;
    for (size_t i = 0; i < scores.size(); ++i) {
      const bool small = finite > 0 && scores[i] < sum / finite;
      below += small ? 1 : 0;
      if (!small || epoch >= 8) {
        EXPECT_EQ(weights[i], 1);
      }
      const double draw = draw_of(1, epoch, static_cast<int64_t>(i));
      if (weights[i] == 0) {
        ++skipped;
        best_skipped = std::min(best_skipped, draw);
      }
      if (weights[i] > 1) {
        ++raised;
        EXPECT_EQ(weights[i], static_cast<float>(1 / (1 - options.ratio)));
        worst_kept = std::max(worst_kept, draw);
      }
    }
    if (epoch >= 8) continue;  // 0.875 of 10 epochs
    EXPECT_EQ(raised, static_cast<int64_t>((1 - options.ratio) * static_cast<double>(below)));
    EXPECT_EQ(skipped + raised, below);
    EXPECT_LE(worst_kept, best_skipped);
  }
}

// In expectation over the draws, the sum of weighted gradients is the sum of all.
TEST(InfoBatch, TheGradientOfAnEpochIsUnbiased) {
  spec::JobOptions job = selection_job("infobatch");
  job.model.hidden = {4};
  Bench bench(job);
  const int64_t n = 40;
  Indices all(n);
  std::iota(all.begin(), all.end(), 0);
  std::vector<float> scores(n, 3.0F);  // 20 of them are below the mean
  for (size_t i = 0; i < 20; ++i) scores[i] = 0.05F * static_cast<float>(i);
  std::vector<std::vector<float>> each;
  for (const int64_t i : all) each.push_back(bench.gradient(bench.losses({i}, 0, true).sum()));
  const size_t size = each[0].size();
  std::vector<double> full(size), sum(size), squares(size);
  for (const auto& g : each)
    for (size_t k = 0; k < size; ++k) full[k] += g[k];
  constexpr int kDraws = 4000;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<float> weights(n, 1.0F);
    weigh_infobatch({}, static_cast<uint64_t>(draw), 10, 1, scores, weights);
    std::vector<double> estimate(size);
    for (size_t i = 0; i < weights.size(); ++i)
      for (size_t k = 0; k < size && weights[i] > 0; ++k) estimate[k] += weights[i] * each[i][k];
    for (size_t k = 0; k < size; ++k) {
      sum[k] += estimate[k];
      squares[k] += estimate[k] * estimate[k];
    }
  }
  int moved = 0;
  for (size_t k = 0; k < size; ++k) {
    const double got = sum[k] / kDraws;
    const double variance = std::max(0.0, squares[k] / kDraws - got * got);
    EXPECT_NEAR(got, full[k], 5 * std::sqrt(variance / kDraws) + 1e-5) << k;
    moved += variance > 1e-8 ? 1 : 0;
  }
  EXPECT_GT(moved, 50) << "draws differ";
}

TEST(InfoBatch, TrainsWhatTheAuthorsLoopTrainsAtTheRatesOfItsOwnEpochs) {
  for (const double end : {0.875, 1.0}) {
    spec::JobOptions job = selection_job("infobatch");
    job.train.infobatch.end = end;
    Bench twin(job);
    const int64_t size = twin.parts.train_set->info().size, batch = 12, per_epoch = size / batch;
    std::vector<float> scores(static_cast<size_t>(size), std::numeric_limits<float>::infinity());
    std::vector<Indices> trained;
    std::vector<double> rates, means;
    for (int64_t epoch = 0; epoch < job.train.epochs; ++epoch) {
      std::vector<float> weights(scores.size(), 1.0F);
      weigh_infobatch(job.train.infobatch, 1, job.train.epochs, epoch, scores, weights);
      Indices kept;
      for (const int64_t i : twin.loader->indices_of(epoch, 0, size))
        if (weights[static_cast<size_t>(i)] > 0) kept.push_back(i);
      const int64_t updates = static_cast<int64_t>(kept.size()) / batch;
      for (int64_t u = 0; u < updates; ++u) {
        const Indices samples(kept.begin() + u * batch, kept.begin() + (u + 1) * batch);
        std::vector<float> own;
        for (const int64_t i : samples) own.push_back(weights[static_cast<size_t>(i)]);
        rates.push_back(optim::learning_rate(job.schedule, job.optimizer.lr,
                                             epoch * per_epoch + u * per_epoch / updates,
                                             job.train.epochs * per_epoch, per_epoch));
        trained.push_back(samples);
        const auto losses = twin.train(samples, epoch, rates.back(), own);
        for (size_t i = 0; i < samples.size(); ++i)
          scores[static_cast<size_t>(samples[i])] = losses[i];
        means.push_back(std::inner_product(own.begin(), own.end(), losses.begin(), 0.0) /
                        std::accumulate(own.begin(), own.end(), 0.0));
      }
    }
    WatchedRun run(job);
    std::vector<double> reported;
    while (!run.replica.done()) {
      run.step();
      reported.push_back(run.replica.state().loss.value());
    }
    ASSERT_EQ(reported.size(), means.size()) << end;
    for (size_t i = 0; i < means.size(); ++i)
      EXPECT_NEAR(reported[i], means[i], 1e-4 * means[i]) << end << ", update " << i;
    EXPECT_EQ(run.story->trained(), trained) << end;
    for (size_t i = 0; i < rates.size(); ++i) EXPECT_EQ(run.story->steps.at(i).lr, rates[i]) << i;
    expect_same_weights(run.replica, twin);
    EXPECT_EQ(run.evaluations, 7);
    EXPECT_EQ(run.replica.epoch(), 7);
    const Counters& c = run.replica.state().counters;
    EXPECT_EQ(c.samples_forward, static_cast<int64_t>(trained.size()) * 12);
    EXPECT_EQ(c.samples_forward, c.samples_backward) << "no forward pass is for the choice alone";
    EXPECT_LT(trained.size(), 7U * 8 - 4);
  }
}

// Such a run ends by its updates, and with them the part in which samples are skipped.
TEST(InfoBatch, SkipsNothingInTheLastUpdatesOfARunThatIsCutShort) {
  for (const char* method : {"infobatch", "graded"}) {
    spec::JobOptions job = selection_job(method);
    job.train.max_steps = 28;
    WatchedRun run(job);
    int64_t skipping = 0;
    for (; !run.replica.done(); run.step()) {
      const auto part = run.replica.state().extras().find(method);
      if (part == run.replica.state().extras().end()) continue;
      const auto weight = part->second.arrays.at("weight").span();
      const bool skips = std::ranges::count(weight, 0.0F) > 0;
      EXPECT_TRUE(!skips || run.replica.updates() < 25) << method;  // 0.875 of 28
      skipping += skips ? 1 : 0;
    }
    EXPECT_GT(skipping, 5) << method;
    EXPECT_EQ(run.replica.updates(), 28) << method;
  }
}

// The same for graded skipping, sample by sample: in expectation each counts once, and the larger
// its loss, the likelier it is kept.
TEST(Graded, SkipsSmallLossesMoreOftenAndEachSampleCountsOnceInExpectation) {
  std::vector<float> scores(40);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(i * i);
  spec::GradedOptions options;
  constexpr int kDraws = 20'000;
  std::vector<double> sum(scores.size()), kept(scores.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<float> weights(scores.size(), 1.0F);
    weigh_graded(options, static_cast<uint64_t>(draw), 10, 3, scores, weights);
    for (size_t i = 0; i < weights.size(); ++i) {
      sum[i] += weights[i];
      kept[i] += weights[i] > 0 ? 1 : 0;
    }
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    const double share = static_cast<double>(i) / 40, p = 0.2 + 0.8 * share * share;
    EXPECT_NEAR(kept[i] / kDraws, p, 5 * std::sqrt(p * (1 - p) / kDraws) + 1e-9) << i;
    EXPECT_NEAR(sum[i] / kDraws, 1, 5 * std::sqrt((1 / p - 1) / kDraws) + 1e-6) << i;
  }
  const std::vector<float> equal(40, 3.0F), ones(40, 1.0F);
  std::vector<float> weights = ones;
  weigh_graded(options, 1, 10, 3, equal, weights);
  EXPECT_EQ(weights, ones) << "losses that are equal name nobody";
  weigh_graded(options, 1, 10, 9, scores, weights);
  EXPECT_EQ(weights, ones) << "the last epochs are whole";
  options.unbias = 0;
  weigh_graded(options, 1, 10, 3, scores, weights);
  for (const float weight : weights) EXPECT_TRUE(weight == 0 || weight == 1);
}

}  // namespace
}  // namespace ductile::train
