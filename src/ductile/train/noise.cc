#include "ductile/train/noise.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/json_value.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

constexpr const char* kNoisePart = "noise";       // of the state's extra parts
constexpr const char* kFirst = "first_gradient";  // of a pair

const Json* saved_noise(const JobState& state) {
  const auto part = state.extras().find(kNoisePart);
  return part == state.extras().end() || part->second.values.empty() ? nullptr
                                                                     : &part->second.values;
}

noise::NoiseEstimator estimator_of(const Json* saved) {
  if (saved == nullptr) return {};
  return noise::NoiseEstimator({saved->at("sqr"), saved->at("var"), saved->at("weight")});
}

bool is_due(const JobState& state, const StepKind& kind, const spec::JobOptions& job) {
  if (!kind.gradient || !kind.update) return false;
  // The square of a pipeline's gradient would be a sum over its stages, which rounds otherwise for
  // another cut.
  if (spec::is_pipelined(job)) return false;
  const Json* saved = saved_noise(state);
  return saved == nullptr || state.counters.updates >= saved->at("next").get<int64_t>();
}

}  // namespace

bool measures_noise(const JobState& state, const StepKind& kind, const spec::JobOptions& job) {
  return job.train.virtual_ranks > 1 && is_due(state, kind, job);
}

bool measures_noise_by_pairs(const JobState& state, const StepKind& kind,
                             const spec::JobOptions& job) {
  return job.train.virtual_ranks == 1 && is_due(state, kind, job);
}

void add_noise(JobState& state, noise::NoiseSample sample) {
  if (!(sample.scale > 0) || !std::isfinite(sample.mean_square_norm) ||
      !std::isfinite(sample.square_norm_mean))
    return;
  noise::NoiseEstimator estimator = estimator_of(saved_noise(state));
  estimator.add(sample);
  const noise::NoiseEstimator::State& now = estimator.state();
  state.extra(kNoisePart).values = {{"sqr", now.sqr},
                                    {"var", now.var},
                                    {"weight", now.weight},
                                    {"next", state.counters.updates + kNoiseEvery}};
}

void add_to_pair(JobState& state, std::span<const float> gradient, double factor, double scale) {
  ExtraPart& part = state.extra(kNoisePart);
  const int64_t now = state.counters.updates;
  const Json first = part.values.value("first", Json());
  if (first.is_null() || first.at("update") != now - 1 || first.at("scale") != scale) {
    if (part.values.empty()) part.values = {{"sqr", 0}, {"var", 0}, {"weight", 0}, {"next", now}};
    part.values["first"] = {{"update", now}, {"factor", factor}, {"scale", scale}};
    const auto size = static_cast<int64_t>(gradient.size());
    std::ranges::copy(gradient, state.extra_array(kNoisePart, kFirst, size).begin());
    return;
  }
  const double before = first.at("factor");
  const std::span<const float> other = part.arrays.at(kFirst).span();
  double square = 0, square_before = 0, square_of_sum = 0;
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = factor * gradient[i], h = before * other[i];
    square += g * g;
    square_before += h * h;
    square_of_sum += (g + h) * (g + h);
  }
  part.values.erase("first");
  part.arrays.erase(kFirst);
  add_noise(state, {.parts = 2,
                    .scale = 2 * scale,
                    .mean_square_norm = (square + square_before) / 2,
                    .square_norm_mean = square_of_sum / 4,
                    .steps = kNoiseEvery / 2});
}

std::optional<noise::GradientNoise> noise_of(const JobState& state) {
  return estimator_of(saved_noise(state)).noise();
}

}  // namespace ductile::train
