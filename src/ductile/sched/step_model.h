#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ductile/sched/goodput.h"
#include "ductile/sched/perf_fit.h"

namespace ductile::sched {

// Step times of a job on one device type: the fitted formula of PerfParams, corrected by what was
// measured. Where a shape (nodes, replicas) was run, the logarithm of measured over fitted time is
// interpolated linearly in the logarithm of the local batch, its ends held: at a measured point the
// model equals the measurement. A shape that was not run takes the correction of the nearest one of
// its kind (one node, several), halved with every doubling of replicas between them. Immutable.
class StepModel {
 public:
  StepModel(const PerfParams& perf, std::span<const StepSample> samples);

  // The corrections: what a saved model consists of, besides its parameters.
  struct Point {
    double local = 0;               // natural logarithm of the local batch
    double gradient = 0, step = 0;  // of measured over fitted times
  };
  struct Shape {
    int32_t nodes = 1, replicas = 1;
    std::vector<Point> points;  // in rising order of local; at least one
  };
  static StepModel of_shapes(const PerfParams& perf, std::vector<Shape> shapes) {
    StepModel model(perf, {});
    model.shapes_ = std::move(shapes);
    return model;
  }
  std::span<const Shape> shapes() const { return shapes_; }

  // As best_batch() of goodput.h, with these times.
  BatchChoice best_batch(const GradientNoise& noise, const BatchLimits& limits, int32_t nodes,
                         int32_t replicas) const;
  // Seconds of one micro-batch with and without synchronisation.
  double step_seconds(int32_t nodes, int32_t replicas, double local_batch) const;
  double gradient_seconds(int32_t nodes, int32_t replicas, double local_batch) const;

 private:
  struct Correction {
    const Shape* shape = nullptr;
    double weight = 0;
  };
  Correction correction(int32_t nodes, int32_t replicas) const;
  static Point interpolate(const Correction& correction, double log_local);

  PerfParams perf_;
  std::vector<Shape> shapes_;
};

}  // namespace ductile::sched
