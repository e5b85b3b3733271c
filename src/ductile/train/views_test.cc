// Evaluation over several views of an image, held to one that is written out pixel by pixel.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ductile/base/error.h"
#include "ductile/data/augment.h"
#include "ductile/data/dataset.h"
#include "ductile/nn/init.h"
#include "ductile/train/evaluate.h"

namespace ductile::train {
namespace {

constexpr int64_t kSide = 28, kPixels = kSide * kSide, kClasses = 10;

// Its logits depend on the place of every pixel.
class Places final : public nn::Model {
 public:
  Places() : weight_(nn::init_normal({kClasses, kPixels}, 0.05, 4, "weight")) {}

  at::Tensor forward(const at::Tensor& x) override {
    EXPECT_FALSE(training());
    samples += x.size(0);
    return at::linear(x.contiguous().flatten(1), weight_);
  }
  const at::Tensor& weight() const { return weight_; }

  int64_t samples = 0;  // that ran forward

 private:
  at::Tensor weight_;
};

struct Data {
  Data() {
    spec::DataOptions options;
    options.test_limit = 50;
    set = data::open_dataset(options, data::Split::test);
    augment = data::resolve_augment({}, set->info());
  }
  data::Loader loader() const {
    data::LoaderTask task;
    task.training = false;
    task.batch_size = 16;  // and a rest
    return {set, augment, {}, task};
  }

  std::shared_ptr<const data::Dataset> set;
  spec::AugmentOptions augment;
};

using Image = std::vector<double>;

double pixel(const Image& image, int64_t i, int64_t j) {
  const auto reflected = [](int64_t at) {
    if (at < 0) return -at;
    return at < kSide ? at : 2 * (kSide - 1) - at;
  };
  return image[static_cast<size_t>(reflected(i) * kSide + reflected(j))];
}

std::vector<double> logits_of(const at::Tensor& weight, const Image& image, int64_t shift,
                              bool mirror) {
  std::vector<double> out(kClasses);
  for (int64_t k = 0; k < kClasses; ++k) {
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide; ++j) {
        const int64_t from = mirror ? kSide - 1 - j : j;
        out[static_cast<size_t>(k)] +=
            weight[k][i * kSide + j].item<double>() * pixel(image, i + shift, from + shift);
      }
    }
  }
  return out;
}

std::vector<double> probabilities(std::vector<double> logits) {
  double sum = 0;
  for (double& x : logits) sum += x = std::exp(x);
  for (double& x : logits) x /= sum;
  return logits;
}

// Of each sample, in order: the images and the labels.
struct Images {
  std::vector<Image> images;
  std::vector<int64_t> labels;
};

Images images_of(const Data& data) {
  Images all;
  data::Loader loader = data.loader();
  while (const auto batch = loader.next()) {
    const at::Tensor x = input_of(*batch).contiguous().to(at::kDouble);
    for (int64_t i = 0; i < batch->num_samples; ++i) {
      const double* values = x.data_ptr<double>() + i * kPixels;
      all.images.emplace_back(values, values + kPixels);
      all.labels.push_back(batch->labels[i]);
    }
  }
  return all;
}

Evaluation slow(const at::Tensor& weight, const Images& samples, const spec::EvalOptions& o) {
  const size_t n = samples.images.size();
  std::vector<std::vector<double>> logits;
  std::vector<double> certainty;
  for (const Image& image : samples.images) {
    logits.push_back(logits_of(weight, image, 0, false));
    certainty.push_back(std::ranges::max(probabilities(logits.back())));
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return certainty[i]; });
  order.resize(static_cast<size_t>(std::llround(o.views_share * static_cast<double>(n))));
  for (const size_t i : order) {
    std::vector<double> sum(kClasses);
    const bool shifts = o.views == "flip_translate";
    for (const int64_t shift : {0, -1, 1}) {
      if (shift != 0 && !shifts) continue;
      const double factor = shift != 0 ? 0.125 : shifts ? 0.25 : 0.5;
      for (const bool mirror : {false, true}) {
        const auto view = logits_of(weight, samples.images[i], shift, mirror);
        for (size_t k = 0; k < sum.size(); ++k) sum[k] += factor * view[k];
      }
    }
    logits[i] = sum;
  }
  Evaluation out{.num_samples = static_cast<int64_t>(n)};
  for (size_t i = 0; i < n; ++i) {
    const auto label = static_cast<size_t>(samples.labels[i]);
    out.loss -= std::log(probabilities(logits[i])[label]) / static_cast<double>(n);
    const auto best = std::ranges::max_element(logits[i]) - logits[i].begin();
    out.accuracy += (best == samples.labels[i] ? 1.0 : 0.0) / static_cast<double>(n);
  }
  return out;
}

TEST(Views, FollowTheirSlowTwin) {
  const Data data;
  Places model;
  const Images samples = images_of(data);
  double plain = 0;
  for (const char* views : {"one", "flip", "flip_translate"}) {
    for (const double share : {1.0, 0.3, 0.0}) {
      spec::EvalOptions o{views, share};
      if (o.views == "one") o.views_share = 0;
      const Evaluation want = slow(model.weight(), samples, o);
      o.views_share = share;
      data::Loader loader = data.loader();
      int64_t done = 0;
      ClassScores scores;
      const Evaluation got = evaluate(model, loader, o, scores, [&](int64_t n) { done = n; });
      EXPECT_NEAR(got.loss, want.loss, 1e-5) << views << " " << share;
      EXPECT_DOUBLE_EQ(got.accuracy, want.accuracy) << views << " " << share;
      EXPECT_EQ(got.num_samples, 50);
      ASSERT_TRUE(got.classes);
      const auto& correct = got.classes->correct;
      EXPECT_EQ(std::accumulate(correct.begin(), correct.end(), int64_t{0}),
                std::llround(50 * want.accuracy));
      EXPECT_EQ(done, 50);
      const double apart = std::fabs(got.loss - plain);
      if (o.views == "one") {
        plain = got.loss;
      } else if (share > 0) {
        EXPECT_GT(apart, 1e-3);
      } else {
        EXPECT_LT(apart, 1e-6);
      }
    }
  }
}

TEST(Views, AreComputedForTheLeastCertainShareOnly) {
  const Data data;
  for (const auto& [share, want] :
       {std::pair{1.0, 300}, std::pair{0.3, 50 + 5 * 15}, std::pair{0.0, 50}}) {
    Places model;
    data::Loader loader = data.loader();
    ClassScores scores;
    evaluate(model, loader, {"flip_translate", share}, scores, [](int64_t) {});
    EXPECT_EQ(model.samples, want) << share;
  }
}

// It may throw, as where somebody interrupts an evaluation.
TEST(Views, EachBatchOfThemIsTold) {
  const Data data;
  Places model;
  data::Loader loader = data.loader();
  ClassScores scores;
  std::vector<int64_t> told;
  evaluate(model, loader, {"flip", 0.5}, scores, [&](int64_t done) { told.push_back(done); });
  EXPECT_EQ(told, (std::vector<int64_t>{16, 32, 48, 50, 50, 50}));  // 25 of them once more
}

TEST(Views, RefuseWhatGivesMoreThanOneClass) {
  class Pixels final : public nn::Model {
    at::Tensor forward(const at::Tensor& x) override { return x; }
  };
  const Data data;
  Pixels model;
  data::Loader loader = data.loader();
  try {
    ClassScores scores;
    evaluate(model, loader, {"flip", 1}, scores, [](int64_t) {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(e.message().find("eval.views"), std::string::npos);
  }
}

// A model of the user's may give a number for each sample that is no logit, and a loss of its own.
class OneNumber final : public nn::Model {
 public:
  at::Tensor forward(const at::Tensor& x) override {
    return x.contiguous().flatten(1).mean(1, true);
  }
  nn::LossOutput loss(const at::Tensor& numbers, const at::Tensor&, double) override {
    nn::LossOutput out;
    out.losses = numbers.flatten().square();
    return out;
  }
};

TEST(Evaluation, AModelWithoutALogitForEachLabelHasNoFiguresByClass) {
  const Data data;
  data::Loader loader = data.loader();
  OneNumber model;
  ClassScores scores;
  const Evaluation result = evaluate(model, loader, {}, scores, [](int64_t) {});
  EXPECT_EQ(result.num_samples, 50);
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_FALSE(result.classes.has_value());
  EXPECT_TRUE(std::isnan(result.accuracy));
}

}  // namespace
}  // namespace ductile::train
