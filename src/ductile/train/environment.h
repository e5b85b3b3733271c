#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ductile/spec/job.h"

namespace ductile::train {

// Settles the number of compute threads of a model that computes other bits with another number
// (nn/threads.h): 1 where train.threads leaves it open. Everything that starts to compute for the
// job calls this first, so the number of workers and their shares of the cores change no bit.
void resolve_threads(spec::JobOptions& job);

// Readies libtorch for a run: the number of compute threads (train.threads, or as many cores as
// this process may use), denormals flushed to zero, deterministic kernels. Call once, before the
// first tensor, from the thread that starts all others. Throws invalid_argument where the number
// counts and OpenMP does not start as many.
void prepare_torch(const spec::JobOptions& job);

// Readies the calling thread, which prepare_torch's thread started, to compute. Cheap: once per
// thread something happens. (at::init_num_threads replaces a pool of libtorch's each time.)
void prepare_thread();

// For worker `place` of `workers` on this host, after the number of them has changed: pins all
// threads to its part of the cores in $DUCTILE_CORES (a list; without it nothing happens) and
// computes with as many threads, where train.threads leaves the number open. The bits of results
// do not depend on it. Only between steps.
void share_cores(const spec::TrainOptions& options, int64_t place, int64_t workers);

// What this process computes with: torch version and BLAS, threads, CPU features, bf16 support.
nlohmann::json describe_environment();

}  // namespace ductile::train
