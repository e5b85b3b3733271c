#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ductile/spec/job.h"

namespace ductile::train {

// Readies libtorch for a run: the number of compute threads (train.threads, or as many cores as
// this process may use), denormals flushed to zero, deterministic kernels. Call once, before the
// first tensor.
void prepare_torch(const spec::TrainOptions& options);

// What this process computes with: torch version and BLAS, threads, CPU features, bf16 support.
nlohmann::json describe_environment();

}  // namespace ductile::train
