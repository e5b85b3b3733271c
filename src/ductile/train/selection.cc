#include "ductile/train/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/data/sampler.h"
#include "ductile/nn/flops.h"
#include "ductile/train/data_form.h"

namespace ductile::train {
namespace {

constexpr uint64_t kDraws = 0x73656c656374;  // the purpose of a stream of draws

// The form of the samples that the training set gives.
DataForm form_of(const spec::JobOptions& job, const Ingredients& ingredients) {
  return DataForm::of(job, ingredients.train_set->info(), ingredients.augment);
}

}  // namespace

StreamOrder::StreamOrder(uint64_t seed, bool shuffled, int64_t num_samples)
    : seed_(seed), shuffled_(shuffled), num_samples_(num_samples) {}

StreamOrder StreamOrder::of(const spec::JobOptions& job, const Ingredients& ingredients) {
  const bool shuffled =
      ingredients.task ? ingredients.task->order() == SampleOrder::shuffled : job.loader.shuffle;
  return {static_cast<uint64_t>(job.seed), shuffled, ingredients.train_info().size};
}

std::vector<int64_t> StreamOrder::indices(int64_t epoch, int64_t first, int64_t count) const {
  const data::Permutation order(seed_, static_cast<uint64_t>(epoch), num_samples_);
  std::vector<int64_t> out(static_cast<size_t>(count));
  for (int64_t& index : out) {
    index = shuffled_ ? order[first] : first;
    ++first;
  }
  return out;
}

void require_sample_losses(const spec::JobOptions& job, Ingredients& ingredients) {
  if (ingredients.task) return;
  const at::NoGradGuard no_grad;
  nn::Model& model = *ingredients.model;
  const nn::Tensors samples = form_of(job, ingredients).blank_inputs(2);
  model.train(false);
  const at::Tensor logits = nn::forward(model, samples);
  // A label for each sample, token or pixel: what the logits [B, K, ...] or [B, T, V] are for.
  const bool tokens = ingredients.train_set->info().tokens;
  const at::Tensor labels = at::zeros(tokens ? samples[0].sizes() : at::IntArrayRef{2}, at::kLong);
  const at::Tensor losses = model.loss(logits, labels, job.train.label_smoothing).losses;
  model.train(true);
  if (losses.dim() == 1 && losses.size(0) == 2 && losses.scalar_type() == at::kFloat) return;
  std::string shape;
  for (const int64_t size : losses.sizes())
    shape += fmt::format("{}{}", shape.empty() ? "" : ", ", size);
  fail(
      ErrorCode::invalid_argument,
      "train.method = \"{}\" needs the loss of each sample, and for two samples model.name = "
      "\"{}\" gives losses of shape [{}] and type {} in place of two floats; let its loss() return "
      "one float for each sample, or set train.method = \"plain\"",
      job.train.method, job.model.name, shape, c10::toString(losses.scalar_type()));
}

double half_resolution_cost(const spec::JobOptions& job, Ingredients& ingredients) {
  const DataForm form = form_of(job, ingredients);
  std::optional<double> flops;
  if (form.images()) {
    const Shape whole = form.sample_shape();
    const at::Tensor sample = at::zeros({1, whole[0], whole[1] / 2, whole[2] / 2}, at::kFloat);
    if (sample.numel() > 0) flops = nn::forward_flops(*ingredients.model, sample);
  }
  if (!flops) {
    fail(ErrorCode::invalid_argument,
         "train.selective.half_resolution: model.name = \"{}\" cannot run on samples of half the "
         "resolution; switch the option off, or choose a model that pools over the whole image",
         job.model.name);
  }
  const double whole = ingredients.flops_per_sample;
  return whole > 0 ? *flops / whole : 0.25;
}

void share_losses(RankContext& rank, const at::Tensor& losses) {
  const std::span<float> shared = rank.shared();
  const auto first = static_cast<size_t>(rank.first());
  // A model of one's own may give the losses of a look in bf16 as bf16.
  const at::Tensor values = losses.detach().to(at::kFloat).contiguous();
  const std::span<const float> own(values.data_ptr<float>(), static_cast<size_t>(values.numel()));
  DUCTILE_CHECK(first + own.size() <= shared.size(), "{} losses from {} on, of {} that are shared",
                own.size(), first, shared.size());
  std::ranges::copy(own, shared.begin() + static_cast<ptrdiff_t>(first));
}

at::Tensor train_on(RankContext& rank, int64_t per_rank, std::span<const float> weights) {
  const data::Batch& batch = rank.batch();
  if (batch.num_samples == 0) return {};
  const nn::LossOutput loss = rank.forward(batch);
  share_losses(rank, loss.losses);
  at::Tensor losses = loss.losses;
  if (!weights.empty()) {
    losses = losses.mul(at::tensor(at::ArrayRef<float>(weights.data(), weights.size())));
  }
  at::Tensor mean = rank.mean(losses);
  if (batch.num_samples != per_rank) {
    mean = mean.mul(static_cast<double>(batch.num_samples) / static_cast<double>(per_rank));
  }
  rank.figure(kLoss, mean.item<float>());
  rank.figure(kCorrect, static_cast<double>(loss.correct));
  rank.figure(kPredictions, static_cast<double>(loss.predictions));
  rank.figure(kSamplesBackward, static_cast<double>(batch.num_samples));
  return mean;
}

double draw_of(uint64_t seed, int64_t epoch, int64_t sample) {
  return Rng(mix(seed, kDraws), static_cast<uint64_t>(epoch), static_cast<uint64_t>(sample))
      .uniform(0, 1);
}

float as_rank(float loss) {
  return std::isnan(loss) ? std::numeric_limits<float>::infinity() : loss;
}

LossHistory::LossHistory(JobState& state, const std::string& part, int64_t capacity)
    : ring_(state.extra_array(part, "history", capacity)), seen_(state.extra(part).values["seen"]) {
  if (seen_.is_null()) seen_ = 0;
}

void LossHistory::add(std::span<const float> losses) {
  auto seen = seen_.get<uint64_t>();
  for (const float loss : losses) ring_[seen++ % ring_.size()] = as_rank(loss);
  seen_ = seen;
}

std::vector<float> LossHistory::sorted() const {
  const auto count = std::min<size_t>(seen_.get<uint64_t>(), ring_.size());
  std::vector<float> out(ring_.begin(), ring_.begin() + static_cast<ptrdiff_t>(count));
  std::ranges::sort(out);
  return out;
}

double share_below(std::span<const float> sorted, float loss) {
  if (sorted.empty()) return 0;
  const auto below = std::ranges::lower_bound(sorted, as_rank(loss)) - sorted.begin();
  return static_cast<double>(below) / static_cast<double>(sorted.size());
}

double keep_probability(std::span<const float> sorted, float loss, double beta) {
  return std::pow(share_below(sorted, loss), beta);
}

}  // namespace ductile::train
