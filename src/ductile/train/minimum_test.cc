#include "ductile/train/minimum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/minima/vectors.h"
#include "ductile/train/data_form.h"
#include "ductile/train/questions.h"
#include "ductile/train/training_loss.h"
#include "ductile/train/workers.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

// ---- A network so small that its Hessian can be written down.

constexpr int64_t kInputs = 6, kHidden = 5, kClasses = 3, kSamples = 40;

class TinyModel : public nn::Model {
 public:
  TinyModel() {
    add("w1", {kHidden, kInputs});
    add("b1", {kHidden});
    add("w2", {kClasses, kHidden});
    register_parameter("frozen", at::ones({2, 2})).set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) override {
    return logits(x.flatten(1), parts_[0], parts_[1], parts_[2]);
  }
  static at::Tensor logits(const at::Tensor& x, const at::Tensor& w1, const at::Tensor& b1,
                           const at::Tensor& w2) {
    return at::matmul(at::tanh(at::matmul(x, w1.t()) + b1), w2.t());
  }

 private:
  void add(const std::string& name, const Shape& shape) {
    at::Tensor value = at::empty(shape);
    Rng rng(7, parts_.size());
    for (int64_t i = 0; i < value.numel(); ++i) value.data_ptr<float>()[i] = rng.normal();
    parts_.push_back(register_parameter(name, value));
  }
  std::vector<at::Tensor> parts_;
};

// Samples in two batches of unequal size.
struct TinyData {
  TinyData() : input(kSamples * kInputs), labels(kSamples) {
    Rng rng(3);
    for (float& value : input) value = rng.normal();
    for (int64_t& label : labels) label = rng.below(kClasses);
  }
  TrainingLoss::Batches batches() const { return {batch(0, 25), batch(25, 15)}; }
  std::shared_ptr<data::Batch> batch(int64_t first, int64_t count) const {
    auto out = std::make_shared<data::Batch>();
    out->shape = {count, 1, 2, kInputs / 2};
    out->input = reinterpret_cast<const std::byte*>(input.data() + first * kInputs);
    out->labels = labels.data() + first;
    out->num_samples = count;
    return out;
  }
  std::vector<float> input;
  std::vector<int64_t> labels;
};

// Loss, gradient and Hessian of the same network in double by libtorch's own derivatives.
struct Exact {
  double loss = 0;
  std::vector<double> gradient;
  std::vector<std::vector<double>> hessian;
};

Exact exact(std::span<const float> weights, const TinyData& data) {
  const auto doubles = [](const float* from, std::vector<int64_t> shape) {
    at::Tensor out = at::empty(shape, at::kDouble);
    std::copy_n(from, out.numel(), out.data_ptr<double>());
    return out;
  };
  const auto n = static_cast<int64_t>(weights.size());
  const at::Tensor flat = doubles(weights.data(), {n}).requires_grad_(true);
  const at::Tensor w1 = flat.slice(0, 0, 30).view({kHidden, kInputs}), b1 = flat.slice(0, 30, 35),
                   w2 = flat.slice(0, 35, 50).view({kClasses, kHidden});
  const at::Tensor x = doubles(data.input.data(), {kSamples, kInputs});
  const at::Tensor labels =
      at::from_blob(const_cast<int64_t*>(data.labels.data()), {kSamples}, at::kLong);
  const at::Tensor loss =
      at::nll_loss(at::log_softmax(TinyModel::logits(x, w1, b1, w2), 1), labels);
  const at::Tensor gradient = torch::autograd::grad({loss}, {flat}, {}, true, true)[0];
  Exact out;
  out.loss = loss.item<double>();
  for (int64_t i = 0; i < n; ++i) {
    out.gradient.push_back(gradient[i].item<double>());
    const at::Tensor row = torch::autograd::grad({gradient[i]}, {flat}, {}, true)[0].contiguous();
    out.hessian.emplace_back(row.data_ptr<double>(), row.data_ptr<double>() + n);
  }
  return out;
}

struct Tiny {
  TinyModel model;
  FlatModel flat{model, spec::OptimizerOptions{}};
  TinyData data;
  TrainingLoss surface{model, flat, data.batches()};
};

TEST(TrainingLoss, AndItsGradientAreThoseOfLibtorchInDouble) {
  Tiny tiny;
  ASSERT_EQ(tiny.surface.weights().size(), 50u) << "frozen parameters are no weights";
  const Exact want = exact(tiny.surface.weights(), tiny.data);
  std::vector<float> gradient(50);
  EXPECT_NEAR(tiny.surface.gradient(tiny.surface.weights(), gradient), want.loss, 1e-6);
  EXPECT_NEAR(tiny.surface.loss(tiny.surface.weights()), want.loss, 1e-6);
  for (size_t i = 0; i < 50; ++i) EXPECT_NEAR(gradient[i], want.gradient[i], 1e-6);
}

TEST(TrainingLoss, HasTheRowsOfItsMatricesAsFilters) {
  Tiny tiny;
  const std::span<const minima::Filter> filters = tiny.surface.filters();
  ASSERT_EQ(filters.size(), static_cast<size_t>(kHidden + kClasses));
  EXPECT_EQ(filters[1].offset, 6);
  EXPECT_EQ(filters[1].size, 6);
  EXPECT_EQ(filters[5].offset, 35);  // behind the bias
  EXPECT_EQ(filters[5].size, 5);
}

// GPT-2 keeps the matrices of its layers as [inputs, outputs]: one output is made by a column.
TEST(TrainingLoss, HasTheColumnsOfAGptsMatricesAsFilters) {
  spec::ModelOptions options;
  options.name = "gpt";
  options.layers = 1;
  options.heads = 2;
  options.dim = 4;
  nn::ModelInfo info;
  info.num_classes = 5;
  info.sequence_length = 3;
  const auto model = nn::make_model(options, info, "fp32", 1);
  FlatModel flat(*model, spec::OptimizerOptions{});
  const TrainingLoss surface(*model, flat, TinyData().batches());
  std::vector<int> covered(surface.weights().size());
  for (const minima::Filter& f : surface.filters()) {
    for (int64_t i = 0; i < f.size; ++i) ++covered[static_cast<size_t>(f.offset + i * f.stride)];
  }
  size_t at = 0, filter = 0;
  for (const FlatModel::Entry& entry : flat.parameters()) {
    const bool is_matrix = entry.shape.size() == 2;
    const bool by_columns = entry.name.starts_with("transformer.h.");
    for (int64_t i = 0; i < entry.size; ++i)
      EXPECT_EQ(covered[at + static_cast<size_t>(i)], is_matrix ? 1 : 0) << entry.name;
    if (is_matrix) {
      const minima::Filter& second = surface.filters()[filter + 1];
      const int64_t rows = entry.shape[0], columns = entry.shape[1];
      EXPECT_EQ(second.offset - static_cast<int64_t>(at), by_columns ? 1 : columns) << entry.name;
      EXPECT_EQ(second.size, by_columns ? rows : columns) << entry.name;
      EXPECT_EQ(second.stride, by_columns ? columns : 1) << entry.name;
      filter += static_cast<size_t>(by_columns ? columns : rows);
    }
    at += static_cast<size_t>(entry.size);
  }
  EXPECT_EQ(filter, surface.filters().size());
}

TEST(TrainingLoss, LeavesTheModelAsItWas) {
  TinyModel model;
  FlatModel flat(model, spec::OptimizerOptions{});
  const std::vector<float> before(flat.weights().begin(), flat.weights().end());
  {
    const TinyData data;
    TrainingLoss surface(model, flat, data.batches());
    std::vector<float> elsewhere(surface.weights().size(), 0.25f);
    surface.loss(elsewhere);
  }
  EXPECT_TRUE(std::ranges::equal(flat.weights(), before));
}

TEST(HessianOfAModel, ByDifferencesIsThatOfLibtorch) {
  Tiny tiny;
  const Exact want = exact(tiny.surface.weights(), tiny.data);
  const double step = minima::product_step(minima::norm(tiny.surface.weights()));
  std::vector<float> column(50);
  for (size_t i = 0; i < 50; ++i) {
    std::vector<float> unit(50);
    unit[i] = 1;
    minima::hessian_product(tiny.surface, unit, step, column);
    for (size_t j = 0; j < 50; ++j) EXPECT_NEAR(column[j], want.hessian[i][j], 2e-3);
  }
}

TEST(HessianOfAModel, HasTheEigenvaluesThatLanczosFinds) {
  Tiny tiny;
  const Exact want = exact(tiny.surface.weights(), tiny.data);
  const std::vector<double> values = minima::symmetric_eigen(want.hessian).values;
  const double largest = std::ranges::max(values), smallest = std::ranges::min(values);
  const minima::Spectrum got = minima::hessian_spectrum(tiny.surface, {});
  EXPECT_TRUE(got.converged);
  EXPECT_NEAR(got.largest, largest, 1e-3 * largest);
  EXPECT_NEAR(got.check, largest, 1e-3 * largest);
  const minima::Spectrum all =
      minima::hessian_spectrum(tiny.surface, {.max_products = 50, .tolerance = 0});
  EXPECT_NEAR(all.largest, largest, 1e-3 * largest);
  EXPECT_NEAR(all.smallest, smallest, 1e-3 * largest);
}

TEST(SharpnessOfAModel, IsAtLeastThatOfRandomPointsOfTheBox) {
  Tiny tiny;
  const std::span<const float> x = tiny.surface.weights();
  const double loss = tiny.surface.loss(x);
  for (const double epsilon : {1e-3, 3e-2}) {
    const minima::Sharpness got = minima::sharpness(tiny.surface, loss, {.epsilon = epsilon});
    Rng rng(5);
    for (int i = 0; i < 300; ++i) {
      std::vector<float> at(x.begin(), x.end());
      const bool corner = i % 2 == 0;
      for (float& w : at) {
        const double share = rng.uniform(-1, 1);
        w += static_cast<float>(epsilon * (std::abs(static_cast<double>(w)) + 1) *
                                (corner ? std::copysign(1, share) : share));
      }
      EXPECT_LE(tiny.surface.loss(at), got.loss);
    }
  }
}

// ---- Runs.

spec::JobOptions minimum_job() {
  spec::JobOptions job;
  job.data.train_limit = 640;
  job.data.test_limit = 100;
  job.model.name = "cnn";
  job.model.width = 4;
  job.optimizer.lr = 0.05;
  job.train.epochs = 1;
  job.train.batch_size = 64;
  job.train.virtual_ranks = 2;
  job.train.ema_decay = 0.7;
  job.augment.flip = true;
  job.checkpoint.every_seconds = 0;
  job.checkpoint.every_steps = 5;
  return job;
}

minima::Options few() {
  minima::Options out;
  out.samples = 150;
  out.steps = 3;
  out.lanczos = 3;
  return out;
}

struct Finished {
  explicit Finished(const spec::JobOptions& options = minimum_job()) : job(options) {
    const run::RunLock lock(folder.path(), run::RunLock::kLocal);
    const link::JobEnd end = train_here(lock, {.folder = folder, .job = job});
    EXPECT_EQ(end.phase, control::Phase::finished) << end.reason;
  }
  Json ask(const minima::Options& options, std::optional<int64_t> checkpoint = {}) const {
    Json out = answer({.what = "minima", .checkpoint = checkpoint, .measure = options}, folder, job,
                      [](const Json&) {}, {});
    for (const char* key : {"wall_seconds", "core_seconds", "peak_rss_bytes", "energy_joules"})
      out.at("cost").erase(key);
    return out;
  }
  std::string refusal(ErrorCode code) const {
    try {
      ask(few());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      return e.what();
    }
    return "nothing thrown";
  }
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
      if (entry.is_regular_file()) out[entry.path().string()] = read_file(entry.path());
    }
    return out;
  }

  TempFolder place;
  spec::JobOptions job;
  run::RunFolder folder = run::RunFolder::create(place.path(), "done", OptionSet(job).to_toml());
};

TEST(Minimum, OfARunIsMeasuredAndTheRunStaysAsItIs) {
  const Finished run;
  const auto before = run.files();
  const run::RunLock lock(run.folder.path(), run::RunLock::kLocal);  // as if it went on
  const Json got = run.ask(few());
  EXPECT_EQ(run.files(), before);
  EXPECT_EQ(got.at("samples"), 150);
  EXPECT_EQ(got.at("train_size"), 640);
  EXPECT_EQ(got.at("step"), 10);
  EXPECT_EQ(got.at("weights_digest"),
            answer({.what = "eval"}, run.folder, run.job, {}, {}).at("weights_digest"));
  EXPECT_EQ(got.at("cost").at("gradients"), 1 + 2 * 2 * 3 + 2 * 3 + 2);
  EXPECT_EQ(got.at("cost").at("losses"), 123);
  EXPECT_EQ(got.at("cost").at("samples_backward"), 150 * 21);
  EXPECT_EQ(got.at("cost").at("samples_forward"), 150 * (21 + 123));
  EXPECT_GT(got.at("sharpness").at(0).at("value"), got.at("sharpness").at(1).at("value"));
  EXPECT_EQ(got.at("slices").at("losses").at(0).at(20), got.at("loss"));
}

TEST(Minimum, HasTheSameBitsForEveryNumberOfThreads) {
  const Finished run;
  const int before = at::get_num_threads();
  std::vector<Json> got;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    got.push_back(run.ask(few()));
  }
  at::set_num_threads(before);
  EXPECT_EQ(got[0], got[1]);
  EXPECT_EQ(got[0], got[2]);
}

TEST(Minimum, IsMeasuredOnSamplesThatTheSeedChooses) {
  const Finished run;
  minima::Options options = few();
  options.epsilon = {};
  options.lanczos = 0;
  options.slices = "none";
  const Json first = run.ask(options);
  EXPECT_EQ(run.ask(options), first);
  options.seed = 2;
  EXPECT_NE(run.ask(options).at("loss"), first.at("loss"));
  options.samples = 10'000;
  const Json all = run.ask(options);
  EXPECT_EQ(all.at("samples"), 640);
  options.seed = 1;  // all samples in another order
  EXPECT_NEAR(run.ask(options).at("loss").get<double>(), all.at("loss").get<double>(), 1e-6);
}

TEST(Minimum, OfACheckpointIsAnotherOne) {
  const Finished run;
  const Json end = run.ask(few()), then = run.ask(few(), 5);
  EXPECT_EQ(then.at("step"), 5);
  EXPECT_NE(then.at("loss"), end.at("loss"));
  EXPECT_EQ(run.ask(few(), 10), end);
}

TEST(Minimum, OfAHalfPrecisionRunIsMeasuredInFp32) {
  spec::JobOptions job = minimum_job();
  job.train.precision = "bf16";
  const Finished run(job);
  Finished same(job);
  same.job.train.precision = "fp32";
  const Json half = run.ask(few());
  fs::copy_file(run.folder.model_file(), same.folder.model_file(),
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(same.ask(few()), half);
}

TEST(Minimum, RefusesWhatCannotBeMeasured) {
  const Finished run;
  const std::string weights = read_file(run.folder.model_file());
  {
    const ckpt::SafetensorsFile file(run.folder.model_file());
    std::vector<ckpt::TensorView> views;
    std::vector<float> bad(static_cast<size_t>(file.find("fc2.bias")->num_bytes) / sizeof(float),
                           std::numeric_limits<float>::quiet_NaN());
    for (const ckpt::TensorInfo& t : file.tensors())
      views.push_back({t.name, t.dtype, t.shape,
                       t.name == "fc2.bias" ? std::as_bytes(std::span(bad)) : file.bytes(t)});
    auto metadata = file.metadata();
    metadata[kWeightsDigestKey] = ckpt::tensors_digest(views);
    ckpt::write_safetensors(run.folder.path() / "other", views, metadata);
  }
  fs::rename(run.folder.path() / "other", run.folder.model_file());
  EXPECT_NE(run.refusal(ErrorCode::conflict).find("not finite"), std::string::npos);
  write_file_atomic(run.folder.model_file(), weights.substr(0, weights.size() / 2));
  EXPECT_NE(run.refusal(ErrorCode::data_loss).find("model.safetensors"), std::string::npos);
  fs::remove(run.folder.model_file());
  EXPECT_NE(run.refusal(ErrorCode::not_found).find("--checkpoint"), std::string::npos);
}

}  // namespace
}  // namespace ductile::train
