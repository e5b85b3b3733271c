#include "ductile/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ductile/base/error.h"
#include "ductile/spec/schedules.h"

namespace ductile::optim {
namespace {

double half_cosine(double from, double to, double share) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

// Share of the way from `begin` to `end`; an empty way is already gone.
double share_of(double at, double begin, double end) {
  return end > begin ? std::clamp((at - begin) / (end - begin), 0.0, 1.0) : 1.0;
}

// The step at which a schedule that stays at the peak for a while begins to fall.
double fall_begin(const spec::ScheduleOptions& options, double warmup, double total,
                  double steps_per_epoch) {
  if (options.name == "trapezoid") {
    return std::clamp(total - std::round(options.trapezoid.decay * total), warmup, total);
  }
  const double explore = options.knee.explore_epochs > 0
                             ? options.knee.explore_epochs * steps_per_epoch
                             : options.knee.explore_share * total;
  return std::min(warmup + std::round(explore), total);
}

}  // namespace

double learning_rate(const spec::ScheduleOptions& options, double peak, double at, double total,
                     int64_t steps_per_epoch) {
  if (total <= 0 || steps_per_epoch < 1 || at < 0) {
    fail(ErrorCode::invalid_argument,
         "learning rate of step {} of {}, {} steps an epoch: a run has at least one step", at,
         total, steps_per_epoch);
  }
  const double start = options.warmup_start * peak;
  const double final = options.final_fraction * peak;
  const double warmup =
      std::min(total, std::round(options.warmup_epochs * static_cast<double>(steps_per_epoch)));

  if (options.name == "one_cycle") {
    const double top = warmup > 0 ? std::min(warmup, total - 1)
                                  : std::max(options.one_cycle.peak_at * total - 1, 0.0);
    if (at < top) return half_cosine(start, peak, share_of(at, 0, top));
    // A peak on the last step leaves no way down: that step still trains at the peak.
    if (at == top) return peak;
    return half_cosine(peak, final, share_of(at, top, total - 1));
  }
  if (at < warmup) return start + (peak - start) * (at / warmup);

  const double done = share_of(at, warmup, total);
  if (options.name == "constant") return peak;
  if (options.name == "cosine") return half_cosine(peak, final, done);
  if (options.name == "linear") return final + (peak - final) * (1 - done);
  if (options.name == "polynomial") {
    return final + (peak - final) * std::pow(1 - done, options.polynomial.power);
  }
  if (options.name == "knee" || options.name == "trapezoid") {
    const double begin = fall_begin(options, warmup, total, static_cast<double>(steps_per_epoch));
    if (at < begin) return peak;
    double way = share_of(at, begin, total);
    if (options.name == "trapezoid" && options.trapezoid.shape == "sqrt") way = std::sqrt(way);
    return peak + (final - peak) * way;
  }
  if (options.name == "step") {
    const double epoch = at / static_cast<double>(steps_per_epoch);
    const auto passed =
        std::count_if(options.step.milestones.begin(), options.step.milestones.end(),
                      [&](int64_t m) { return epoch >= static_cast<double>(m); });
    return peak * std::pow(options.step.gamma, static_cast<double>(passed));
  }
  spec::schedules().at(options.name);
  fail(ErrorCode::internal, "schedule.name = \"{}\" has no formula", options.name);
}

}  // namespace ductile::optim
