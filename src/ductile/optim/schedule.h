#pragma once

#include <cstdint>

#include "ductile/spec/job.h"

namespace ductile::optim {

// The learning rate of step `at` (counted from 0) of a run of `total` steps; both may be fractions
// where the batch has changed. It is a pure function, so resuming needs no state, and a longer run
// only has another total. It is never negative; at and after `total` it stays at the final
// value.
//
// With W = warm-up steps (warmup_epochs rounded to steps, at most the run), N = total and
// p = (at - W) / (N - W):
//   warm-up     from warmup_start * peak at step 0, linear (one_cycle: half a cosine), to peak at
//               step W
//   constant    peak
//   step        peak * gamma ^ (milestones, in epochs from the start of the run, passed)
//   cosine      final + (peak - final) * (1 + cos(pi * p)) / 2
//   linear      final + (peak - final) * (1 - p)
//   polynomial  final + (peak - final) * (1 - p) ^ power
//   knee        peak for E = explore_epochs, or by itself for explore_share of the run; then
//               final + (peak - final) * (1 - (at - W - E) / (N - W - E)) (Iyer et al.,
//               "Wide-minima density hypothesis and the explore-exploit learning rate schedule",
//               arXiv 2003.03977v5, section 4). Where W + E >= N the run ends at the peak.
//   trapezoid   peak until the last `decay` of the run, then final + (peak - final) * (1 - q) with
//               q the share of the way down, or its square root (Haegele et al., arXiv 2405.18392,
//               section 3)
//   one_cycle   half cosines (Smith and Topin, arXiv 1708.07120, as torch's OneCycleLR places them)
//               from warmup_start * peak at step 0 to peak at step peak_at * N - 1 to final at the
//               last step; a warm-up replaces the rise, the peak then stands at step W
// where final = final_fraction * peak. Throws invalid_argument for an unknown name or a run without
// a step.
double learning_rate(const spec::ScheduleOptions& options, double peak, double at, double total,
                     int64_t steps_per_epoch);

}  // namespace ductile::optim
