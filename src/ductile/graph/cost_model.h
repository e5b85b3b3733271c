#pragma once

#include "ductile/graph/graph.h"

namespace ductile::graph {

// The figures of a device from which analytic times are computed. Defaults: an NVIDIA V100 in fp32,
// as in GraphPipe's experiments.
struct DeviceModel {
  double flops = 14e12;             // sustained, per second
  double memory_bandwidth = 800e9;  // bytes per second
  double overhead = 10e-6;          // seconds per operator and pass, whatever its size
  bool operator==(const DeviceModel&) const = default;
};

// What an operator does, from which analytic_cost() makes times by the roofline rule: the slower
// of arithmetic and memory traffic, plus the overhead. Per sample, forward.
struct Work {
  double flops = 0;
  double bytes = 0;  // read and written per sample, weights apart
  double parameter_bytes = 0;
  double activation_bytes = 0;  // kept for backward
  double weight_flops = -1;     // of the weight gradient; -1: as many as forward, 0 if no weights
  double workspace_bytes = 0;   // per sample
  double weight_traffic = -1;   // bytes of weights read a pass; -1: all (an embedding reads few)
};

// Backward to the input takes as many operations as forward, and so does the weight gradient.
// The weights are read (forward, input) or their gradient written once per micro-batch: that is
// the fixed part. Roofline of a sum: max(flops, bytes) of the per-sample parts, so the time is an
// upper bound of the true roofline at every micro-batch size.
OpCost analytic_cost(const Work& work, const DeviceModel& device);

}  // namespace ductile::graph
