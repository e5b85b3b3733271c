#include "ductile/noise/noise_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ductile/base/error.h"

namespace ductile::noise {
namespace {

constexpr double kDecay = 0.999;    // per step of batch M0
constexpr double kLeastVar = 1e-6;  // of sqr: keeps the scale above 0, in whatever unit losses are

}  // namespace

double gain(const GradientNoise& noise, double scale) {
  const double denominator = noise.var / scale + noise.sqr;
  return denominator > 0 ? (noise.var + noise.sqr) / denominator : 1.0;
}

double efficiency(const GradientNoise& noise, double scale) { return gain(noise, scale) / scale; }

double adascale_factor(const GradientNoise& noise, double scale) { return gain(noise, scale); }

double square_root_factor(double scale) { return std::sqrt(scale); }

void NoiseEstimator::add(const NoiseSample& sample) {
  if (sample.parts < 2 || !(sample.scale > 0))
    fail(ErrorCode::invalid_argument,
         "the noise of {} micro-batches at scale {} cannot be told: two or more are needed, or two "
         "steps in a row",
         sample.parts, sample.scale);
  const double c = sample.parts, local = sample.mean_square_norm, whole = sample.square_norm_mean;
  update(sample.scale * sample.steps, (c * whole - local) / (c - 1),
         (local - whole) * sample.scale / (c - 1));
}

void NoiseEstimator::update(double batches, double sqr, double var) {
  const double keep = std::pow(kDecay, batches);
  state_.sqr = keep * state_.sqr + (1 - keep) * sqr;
  state_.var = keep * state_.var + (1 - keep) * var;
  state_.weight = keep * state_.weight + (1 - keep);
}

std::optional<GradientNoise> NoiseEstimator::noise() const {
  if (state_.weight <= 0) return std::nullopt;
  const double sqr = std::max(state_.sqr / state_.weight, 0.0);
  return GradientNoise{sqr, std::max(state_.var / state_.weight, kLeastVar * sqr)};
}

std::optional<double> NoiseEstimator::noise_scale(double init_batch) const {
  const auto now = noise();
  if (!now) return std::nullopt;
  return noise::noise_scale(*now, init_batch);
}

double noise_scale(const GradientNoise& noise, double init_batch) {
  return noise.sqr > 0 ? init_batch * noise.var / noise.sqr
                       : std::numeric_limits<double>::infinity();
}

}  // namespace ductile::noise
