#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ductile/noise/noise_scale.h"
#include "ductile/train/step_method.h"

// The noise of the gradients, measured in one update of kNoiseEvery, because that takes one pass
// over the gradient of each virtual rank and one over their mean. The estimate is an extra part of
// the state, and which updates are measured follows from the state alone.
namespace ductile::train {

inline constexpr int64_t kNoiseEvery = 8;

// Whether the ranks' gradients of the present step are measured, in a job of several virtual ranks.
// One that gives no measurement, since its gradients overflowed or its batch is not full and the
// ranks' parts are not equal, is made up for by the next one.
bool measures_noise(const JobState& state, const StepKind& kind, const spec::JobOptions& job);
// The measurement of a step for which measures_noise() holds. One with numbers that are not finite
// is dropped.
void add_noise(JobState& state, noise::NoiseSample sample);
// The same for a job of one virtual rank, in which the gradients of two successive updates stand
// for those of two ranks. There is one worker then, which has all of them. Between the two the
// state holds the first one, and so does a checkpoint.
bool measures_noise_by_pairs(const JobState& state, const StepKind& kind,
                             const spec::JobOptions& job);
// The gradient of such a step, times `factor`; `scale`: its batch / train.batch_size.
void add_to_pair(JobState& state, std::span<const float> gradient, double factor, double scale);
// None before the first measurement. In units of the job's train.batch_size.
std::optional<noise::GradientNoise> noise_of(const JobState& state);

}  // namespace ductile::train
