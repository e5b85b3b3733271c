#include "ductile/train/noise.h"

#include <cmath>

#include "ductile/base/json_value.h"

namespace ductile::train {
namespace {

constexpr const char* kNoisePart = "noise";  // of the state's extra parts

const nlohmann::json* saved_noise(const JobState& state) {
  const auto part = state.extras().find(kNoisePart);
  return part == state.extras().end() || part->second.values.empty() ? nullptr
                                                                     : &part->second.values;
}

noise::NoiseEstimator estimator_of(const nlohmann::json* saved) {
  if (saved == nullptr) return {};
  return noise::NoiseEstimator({saved->at("sqr"), saved->at("var"), saved->at("weight"), true});
}

}  // namespace

bool measures_noise(const JobState& state, const StepKind& kind, const spec::JobOptions& job) {
  if (!kind.gradient || !kind.update || job.train.virtual_ranks < 2) return false;
  // The square of a pipeline's gradient would be a sum over its stages, which rounds otherwise for
  // another cut.
  if (spec::is_pipelined(job)) return false;
  const nlohmann::json* saved = saved_noise(state);
  return saved == nullptr || state.counters.updates >= saved->at("next").get<int64_t>();
}

void add_noise(JobState& state, noise::NoiseSample sample) {
  if (!(sample.scale > 0) || !std::isfinite(sample.mean_square_norm) ||
      !std::isfinite(sample.square_norm_mean))
    return;
  sample.steps = kNoiseEvery;
  noise::NoiseEstimator estimator = estimator_of(saved_noise(state));
  estimator.add(sample);
  const noise::NoiseEstimator::State& now = estimator.state();
  state.extra(kNoisePart).values = {{"sqr", now.sqr},
                                    {"var", now.var},
                                    {"weight", now.weight},
                                    {"next", state.counters.updates + kNoiseEvery}};
}

std::optional<noise::GradientNoise> noise_of(const JobState& state) {
  return estimator_of(saved_noise(state)).noise();
}

}  // namespace ductile::train
