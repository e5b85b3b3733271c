#include "ductile/train/class_scores.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"

namespace ductile::train {
namespace {

// Logits of two classes whose softmax gives the first one probability p.
std::vector<float> logits_of(double p) { return {static_cast<float>(std::log(p / (1 - p))), 0}; }

// Ten samples, each surely of the first class by 0.8, of which six are: one bin, off by 0.2.
TEST(ClassScores, CalibrationErrorOfOneBin) {
  ClassScores scores;
  for (int i = 0; i < 10; ++i) scores.add(logits_of(0.8), i < 6 ? 0 : 1);
  const ClassCounts counts = scores.counts();
  EXPECT_NEAR(counts.calibration_error, 0.2, 1e-7);
  EXPECT_NEAR(counts.brier, (6 * (0.04 + 0.04) + 4 * (0.64 + 0.64)) / 10, 1e-7);
  EXPECT_EQ(counts.samples, (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(counts.correct, (std::vector<int64_t>{6, 0}));
  EXPECT_EQ(counts.worst(), 1);
  EXPECT_EQ(scores.confusion().at({1, 0}), 4);
}

// A bin that is too sure and one that is not sure enough do not cancel.
TEST(ClassScores, CalibrationErrorsOfTwoBinsAddUp) {
  ClassScores scores;
  for (int i = 0; i < 4; ++i) scores.add(logits_of(0.9), i < 2 ? 0 : 1);  // 0.4 too sure
  for (int i = 0; i < 4; ++i) scores.add(logits_of(0.6), i < 4 ? 0 : 1);  // 0.4 too unsure
  EXPECT_NEAR(scores.counts().calibration_error, 0.4, 1e-7);
  ClassScores right;
  for (int i = 0; i < 4; ++i) right.add(logits_of(0.75), i < 3 ? 0 : 1);
  EXPECT_NEAR(right.counts().calibration_error, 0, 1e-7);
}

TEST(ClassScores, TheWorstClassHasSamplesAndTheFirstOfEqualOnesCounts) {
  ClassCounts counts{{0, 4, 2, 4}, {0, 2, 1, 4}};
  EXPECT_EQ(counts.worst(), 1);
  EXPECT_EQ(ClassCounts{}.worst(), std::nullopt);
  const std::vector<std::string> names{"a", "b"};
  EXPECT_EQ(describe_class(counts, 1, names),
            (nlohmann::json{
                {"class", 1}, {"name", "b"}, {"accuracy", 0.5}, {"correct", 2}, {"samples", 4}}));
  EXPECT_FALSE(describe_class(counts, 3, names).contains("name"));
}

TEST(ClassScores, LargeLogitsAndOnesThatAreNoNumbers) {
  ClassScores scores;
  scores.add(std::vector<float>{3e38F, -3e38F}, 0);
  EXPECT_EQ(scores.counts().brier, 0);
  EXPECT_EQ(scores.counts().calibration_error, 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  scores.add(std::vector<float>{0, nan}, 0);
  EXPECT_EQ(predicted_class(std::vector<float>{0, nan}), 1) << "as libtorch";
  EXPECT_TRUE(std::isnan(scores.counts().brier));
  EXPECT_TRUE(std::isnan(scores.counts().calibration_error))
      << "0 would say that the probabilities can be believed";
  EXPECT_EQ(scores.counts().correct[0], 1);
}

// All samples are kept, and each figure is made from its definition.
TEST(ClassScores, EqualTheSlowTwin) {
  Rng rng(5);
  constexpr int kClasses = 7, kSamples = 3000;
  ClassScores scores;
  std::vector<std::vector<double>> probabilities;
  std::vector<int64_t> labels, predicted;
  for (int s = 0; s < kSamples; ++s) {
    std::vector<float> logits(kClasses);
    for (float& x : logits) x = static_cast<float>(2 * rng.normal());
    const auto label = static_cast<int64_t>(rng.below(kClasses));
    logits[static_cast<size_t>(label)] += 1;
    scores.add(logits, label);
    std::vector<double> p(kClasses);
    double sum = 0;
    for (int c = 0; c < kClasses; ++c) sum += p[c] = std::exp(static_cast<double>(logits[c]));
    int64_t best = 0;
    for (int c = 0; c < kClasses; ++c) {
      p[c] /= sum;
      if (p[c] > p[static_cast<size_t>(best)]) best = c;
    }
    probabilities.push_back(p);
    labels.push_back(label);
    predicted.push_back(best);
  }
  double error = 0, brier = 0;
  for (int bin = 0; bin < ClassScores::kBins; ++bin) {
    double right = 0, sure = 0, in_bin = 0;
    for (int s = 0; s < kSamples; ++s) {
      const double p = probabilities[s][static_cast<size_t>(predicted[s])];
      if (p <= static_cast<double>(bin) / 15 || p > static_cast<double>(bin + 1) / 15) continue;
      ++in_bin;
      right += predicted[s] == labels[s];
      sure += p;
    }
    if (in_bin > 0) error += in_bin / kSamples * std::abs(right / in_bin - sure / in_bin);
  }
  for (int s = 0; s < kSamples; ++s) {
    for (int c = 0; c < kClasses; ++c)
      brier += std::pow(probabilities[s][c] - (c == labels[s]), 2) / kSamples;
  }
  const ClassCounts counts = scores.counts();
  EXPECT_NEAR(counts.calibration_error, error, 1e-12);
  EXPECT_NEAR(counts.brier, brier, 1e-12);
  for (int64_t c = 0; c < kClasses; ++c) {
    for (int64_t p = 0; p < kClasses; ++p) {
      int64_t count = 0;
      for (int s = 0; s < kSamples; ++s) count += labels[s] == c && predicted[s] == p;
      const auto found = scores.confusion().find({c, p});
      EXPECT_EQ(found == scores.confusion().end() ? 0 : found->second, count);
    }
  }
}

}  // namespace
}  // namespace ductile::train
