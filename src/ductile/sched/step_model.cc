#include "ductile/sched/step_model.h"

#include <algorithm>
#include <cmath>

#include "ductile/sched/batch_search_impl.h"

namespace ductile::sched {

StepModel::StepModel(const PerfParams& perf, std::span<const StepSample> samples) : perf_(perf) {
  for (const StepSample& s : samples) {
    auto shape = std::find_if(shapes_.begin(), shapes_.end(), [&](const Shape& known) {
      return known.nodes == s.nodes && known.replicas == s.replicas;
    });
    if (shape == shapes_.end()) shape = shapes_.insert(shape, {s.nodes, s.replicas, {}});
    const double gradient = sched::gradient_seconds(perf, s.local_batch);
    const double step = sched::step_seconds(perf, s.nodes, s.replicas, s.local_batch, 0);
    shape->points.push_back({std::log(s.local_batch), std::log(s.gradient_seconds / gradient),
                             std::log(s.step_seconds / step)});
  }
  for (Shape& shape : shapes_)
    std::sort(shape.points.begin(), shape.points.end(),
              [](const Point& a, const Point& b) { return a.local < b.local; });
}

StepModel::Correction StepModel::correction(int32_t nodes, int32_t replicas) const {
  Correction best;
  for (const Shape& shape : shapes_) {
    if ((shape.nodes > 1) != (nodes > 1)) continue;
    const double apart = std::abs(std::log2(static_cast<double>(shape.replicas) / replicas)) +
                         (shape.nodes == nodes ? 0 : 0.1);
    const double weight =
        shape.nodes == nodes && shape.replicas == replicas ? 1 : std::exp2(-apart);
    if (weight > best.weight) best = {&shape, weight};
  }
  return best;
}

StepModel::Point StepModel::interpolate(const Correction& correction, double log_local) {
  if (!correction.shape) return {};
  const std::vector<Point>& points = correction.shape->points;
  const auto above = std::lower_bound(points.begin(), points.end(), log_local,
                                      [](const Point& p, double at) { return p.local < at; });
  Point p;
  if (above == points.begin()) {
    p = points.front();
  } else if (above == points.end()) {
    p = points.back();
  } else {
    const Point& low = *(above - 1);
    const double part = (log_local - low.local) / (above->local - low.local);
    p.gradient = low.gradient + part * (above->gradient - low.gradient);
    p.step = low.step + part * (above->step - low.step);
  }
  return {log_local, p.gradient * correction.weight, p.step * correction.weight};
}

double StepModel::gradient_seconds(int32_t nodes, int32_t replicas, double local_batch) const {
  return sched::gradient_seconds(perf_, local_batch) *
         std::exp(interpolate(correction(nodes, replicas), std::log(local_batch)).gradient);
}

double StepModel::step_seconds(int32_t nodes, int32_t replicas, double local_batch) const {
  const double step = fitted_step(sched::gradient_seconds(perf_, local_batch),
                                  sync_seconds(perf_, nodes, replicas), perf_.gamma);
  return step * std::exp(interpolate(correction(nodes, replicas), std::log(local_batch)).step);
}

BatchChoice StepModel::best_batch(const GradientNoise& noise, const BatchLimits& limits,
                                  int32_t nodes, int32_t replicas) const {
  const Correction known = correction(nodes, replicas);
  const double sync = sync_seconds(perf_, nodes, replicas);
  return search_batch(noise, limits, replicas, [&](int32_t local, int32_t accumulation) {
    const double gradient = sched::gradient_seconds(perf_, local);
    const Point off = interpolate(known, std::log(local));
    return accumulation * gradient * std::exp(off.gradient) +
           fitted_step(gradient, sync, perf_.gamma) * std::exp(off.step);
  });
}

}  // namespace ductile::sched
