#pragma once

#include <cstdint>

#include "ductile/spec/job.h"

namespace ductile::spec {

// Arrays as large as the weights that the update rule keeps. The rules themselves are beyond the
// torch line; train/profile_test.cc holds this against them.
int64_t optimizer_arrays(const OptimizerOptions& options);

// What a worker of a job by stages holds of its stages' state, the optimiser's arrays apart: bytes
// for each byte of their weights in float32. These are the weights; a stage's sum of their
// gradients, of an exact pipeline all partial sums over micro-batches; what it gives to the sum
// over workers, and that sum; the average that is evaluated; weights in half precision.
double stage_state_factor(const JobOptions& job);

}  // namespace ductile::spec
