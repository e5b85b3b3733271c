#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ductile/spec/job.h"

namespace ductile::train {

// Readies libtorch for a run: the number of compute threads (train.threads, or as many cores as
// this process may use), denormals flushed to zero, deterministic kernels. Call once, before the
// first tensor.
void prepare_torch(const spec::TrainOptions& options);

// For worker `place` of `workers` on this host, after the number of them has changed: pins all
// threads to its part of the cores in $DUCTILE_CORES (a list; without it nothing happens) and
// computes with as many threads, where train.threads leaves the number open. The bits of results
// do not depend on it. Only between steps.
void share_cores(const spec::TrainOptions& options, int64_t place, int64_t workers);

// What this process computes with: torch version and BLAS, threads, CPU features, bf16 support.
nlohmann::json describe_environment();

}  // namespace ductile::train
