// What the methods that choose their samples have in common, and what goes wrong with any of them.
#include "ductile/train/selection.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/train/testing/watched_run.h"

namespace ductile::train {
namespace {

using testing::refusal_of;
using testing::selection_job;
using testing::WatchedRun;

constexpr const char* kChoosing[] = {"selective", "stale_selective", "infobatch", "graded"};

// ---- The parts.

TEST(Selection, ThePercentileIsThatOfItsDefinition) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> seen(rng.below(50));
    for (float& loss : seen) loss = static_cast<float>(rng.below(round % 2 == 0 ? 8 : 1000)) / 8;
    std::vector<float> sorted = seen;
    std::ranges::sort(sorted);
    for (int i = 0; i < 20; ++i) {
      const float loss = static_cast<float>(rng.below(1000)) / 8;
      double below = 0;
      for (const float other : seen) below += other < loss ? 1 : 0;
      const double want = seen.empty() ? 0 : below / static_cast<double>(seen.size());
      EXPECT_EQ(share_below(sorted, loss), want);
      EXPECT_EQ(keep_probability(sorted, loss, 2), want * want);
    }
  }
}

TEST(Selection, TheHistoryHoldsTheLastLossesAndRanksWhatIsNoNumberHighest) {
  const spec::JobOptions job = selection_job("plain");
  Replica replica(job);
  for (const int64_t capacity : {1, 7, 64}) {
    const std::string part = fmt::format("h{}", capacity);
    std::deque<float> twin;
    Rng rng(5, static_cast<uint64_t>(capacity));
    for (int round = 0; round < 40; ++round) {
      std::vector<float> losses(rng.below(20));
      for (float& loss : losses) {
        loss = rng.below(9) == 0 ? std::nanf("") : rng.uniform();
        twin.push_back(std::isnan(loss) ? std::numeric_limits<float>::infinity() : loss);
        if (twin.size() > static_cast<size_t>(capacity)) twin.pop_front();
      }
      LossHistory history(replica.state(), part, capacity);
      history.add(losses);
      std::vector<float> want(twin.begin(), twin.end());
      std::ranges::sort(want);
      ASSERT_EQ(history.sorted(), want);
      if (!want.empty()) {
        const double finite = static_cast<double>(
            std::ranges::count_if(want, [](float l) { return std::isfinite(l); }));
        EXPECT_EQ(share_below(want, std::nanf("")), finite / static_cast<double>(want.size()));
      }
    }
  }
}

// beta 1, 2, 3 keep a half, a third and a quarter.
TEST(Selection, TheShareThatIsKeptIsThatOfThePaper) {
  Rng rng(7);
  Replica replica(selection_job("plain"));
  for (const double beta : {0.0, 1.0, 2.0, 3.0}) {
    LossHistory history(replica.state(), fmt::format("beta{}", beta), 1024);
    double kept = 0, all = 0;
    for (int64_t batch = 0; batch < 500; ++batch) {
      std::vector<float> losses(128);
      for (float& loss : losses) loss = std::exp(rng.normal());
      history.add(losses);
      const std::vector<float> sorted = history.sorted();
      for (int64_t i = 0; i < 128; ++i, ++all) {
        const double p = keep_probability(sorted, losses[static_cast<size_t>(i)], beta);
        kept += draw_of(1, 0, 128 * batch + i) < p ? 1 : 0;
      }
    }
    const double want = 1 / (beta + 1), sigma = std::sqrt(want * (1 - want) / all);
    // A loss is never below itself: the mean share is a little less than a half.
    EXPECT_NEAR(kept / all, want, 4 * sigma + 0.002) << beta;
  }
}

TEST(Selection, ADrawBelongsToASampleInAnEpoch) {
  std::set<double> draws;
  for (int64_t epoch = 0; epoch < 10; ++epoch)
    for (int64_t sample = 0; sample < 100; ++sample) {
      const double draw = draw_of(1, epoch, sample);
      EXPECT_EQ(draw, draw_of(1, epoch, sample));
      EXPECT_TRUE(draw >= 0 && draw < 1);
      draws.insert(draw);
    }
  EXPECT_EQ(draws.size(), 1000U);
  EXPECT_NE(draw_of(2, 0, 0), draw_of(1, 0, 0));
}

// ---- Edges.

// Its losses are `losses` of their count: equal for all samples.
class Odd final : public nn::Model {
 public:
  explicit Odd(bool per_sample) : per_sample_(per_sample) {
    weight_ = register_parameter("weight", at::ones({4}));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return at::zeros({x.size(0), 10}).add(weight_.sum().mul(0));
  }
  nn::LossOutput loss(const at::Tensor& logits, const at::Tensor& labels, double s) override {
    nn::LossOutput out = nn::Model::loss(logits, labels, s);
    if (!per_sample_) out.losses = out.losses.mean();
    return out;
  }

 private:
  bool per_sample_;
  at::Tensor weight_;
};

std::function<void(Ingredients&)> odd(bool per_sample) {
  return [per_sample](Ingredients& given) { given.model = std::make_unique<Odd>(per_sample); };
}

TEST(Selection, AModelWithoutALossForEachSampleIsRefusedByName) {
  for (const char* method : kChoosing) {
    spec::JobOptions job = selection_job(method);
    const std::string text = refusal_of([&] { WatchedRun run(job, odd(false)); });
    EXPECT_NE(text.find("model.name = \"mlp\""), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format("train.method = \"{}\"", method)), std::string::npos) << text;
    EXPECT_EQ(refusal_of([&] { WatchedRun run(job, odd(true)); }), "no error");
  }
  EXPECT_EQ(refusal_of([&] { WatchedRun run(selection_job("selective")); }), "no error");
}

TEST(Selection, EqualLossesKeepNothingOrSkipNothingAndEndInAnyCase) {
  spec::JobOptions job = selection_job("selective");
  job.train.selective.first_epochs = 0;
  WatchedRun none(job, odd(true));
  none.finish();
  EXPECT_EQ(none.replica.updates(), 0);
  EXPECT_EQ(none.replica.state().counters.samples_forward, 7 * 96);
  job.train.selective.length = "updates";
  WatchedRun endless(job, odd(true));
  const std::string text = refusal_of([&] { endless.finish(); });
  EXPECT_NE(text.find("none of the last 100 samples"), std::string::npos) << text;
  WatchedRun all(selection_job("infobatch"), odd(true));
  all.finish();
  EXPECT_EQ(all.replica.updates(), 7 * 8);
}

TEST(Selection, ARunWhoseLossIsNoNumberHasDivergedAndSaysSo) {
  for (const char* method : kChoosing) {
    spec::JobOptions job = selection_job(method);
    job.optimizer.lr = 1e30;
    WatchedRun run(job);
    const std::string text = refusal_of([&] { run.finish(); });
    EXPECT_NE(text.find("diverged"), std::string::npos) << method << ": " << text;
  }
}

TEST(Selection, ABatchIsAtMostTheTrainingSet) {
  for (const char* method : kChoosing) {
    spec::JobOptions job = selection_job(method);
    job.train.batch_size = 101;
    EXPECT_NE(refusal_of([&] { WatchedRun run(job); }).find("101"), std::string::npos);
    job.train.batch_size = 100;  // one batch per epoch
    WatchedRun run(job);
    run.finish();
    EXPECT_GE(run.replica.updates(), 7);
  }
}

}  // namespace
}  // namespace ductile::train
