#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ductile/nn/class_rows_impl.h"

namespace ductile::nn {
namespace {

using at::Tensor;

struct Rows {
  Tensor scores, labels;
};

// Large ones are shared out among the threads.
std::vector<Rows> some_rows() {
  at::manual_seed(3);
  std::vector<Rows> out;
  for (const auto& [rows, classes] : {std::pair{128, 10}, {1, 1}, {7, 1000}, {300, 257}, {0, 5}})
    out.push_back({at::randn({rows, classes}), at::randint(classes, {rows}, at::kLong)});
  return out;
}

TEST(ClassRows, GiveTheScoresOfTheirLabels) {
  for (const Rows& r : some_rows()) {
    ASSERT_TRUE(plain_class_rows(r.scores, r.labels));
    const Tensor want = r.scores.gather(1, r.labels.unsqueeze(1)).squeeze(1).mul(-0.9);
    EXPECT_TRUE(scores_of_labels(r.scores, r.labels, static_cast<float>(-0.9)).equal(want));
  }
}

TEST(ClassRows, AreShiftedAndScaledAsByOperators) {
  for (const Rows& r : some_rows()) {
    for (const bool same : {false, true}) {  // what a mean sends back is one value for all
      const int64_t n = r.labels.size(0);
      const Tensor scale = same ? at::full({1}, 0.3).expand({n}) : at::randn({n});
      const Tensor labels = r.labels.unsqueeze(1);
      Tensor want = r.scores.clone(), got = r.scores.clone();
      want.scatter_add_(1, labels, at::full_like(labels, -0.9, want.options()));
      want.mul_(scale.unsqueeze(1));
      shift_labels_and_scale(got, r.labels, static_cast<float>(-0.9), scale);
      EXPECT_TRUE(got.equal(want));
    }
  }
}

TEST(ClassRows, CountTheLabelsThatArgmaxFinds) {
  for (const Rows& r : some_rows()) {
    Tensor scores = r.scores.mul(2).round();  // many are equal
    for (int64_t i = 0; i < scores.size(0); i += 3) scores[i][i % scores.size(1)] = std::nan("");
    if (scores.size(0) > 0) scores[0].fill_(std::nan(""));
    int64_t all = 0;
    for (int64_t shift = 0; shift < scores.size(1); ++shift) {
      const Tensor labels = r.labels.add(shift).remainder(scores.size(1));
      const int64_t want = at::argmax(scores, 1).eq(labels).sum().item<int64_t>();
      ASSERT_EQ(num_labels_first(scores, labels), want);
      all += want;
    }
    EXPECT_EQ(all, scores.size(0));
  }
}

TEST(ClassRows, ThatAreNotPlainAreLeftToOperators) {
  const Tensor scores = at::randn({4, 3}), labels = at::zeros({4}, at::kLong);
  EXPECT_TRUE(plain_class_rows(scores, labels));
  EXPECT_FALSE(plain_class_rows(scores.to(at::kDouble), labels));
  EXPECT_FALSE(plain_class_rows(at::randn({3, 4}).t(), labels));
  EXPECT_FALSE(plain_class_rows(scores, labels.to(at::kInt)));
  EXPECT_FALSE(plain_class_rows(scores, at::zeros({3}, at::kLong)));
  EXPECT_FALSE(plain_class_rows(scores, at::full({4}, 3, at::kLong)));
  EXPECT_FALSE(plain_class_rows(scores, at::full({4}, -1, at::kLong)));
}

}  // namespace
}  // namespace ductile::nn
