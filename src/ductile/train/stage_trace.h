#pragma once

#include <cstdint>
#include <optional>

#include "ductile/parallel/exchange.h"
#include "ductile/parallel/trace.h"
#include "ductile/run/trace.h"
#include "ductile/spec/job.h"

// The recorded steps of a job that trains by stages (train.pipelined.trace_steps).
namespace ductile::train {

// Whether step number `step`, from 0, is recorded: the first three, in which memory and caches find
// their places, are not.
bool is_traced(const spec::JobOptions& job, int64_t step);

// To be called by all workers of the exchange, with what each has recorded of the step. The worker
// of rank 0 gets all of it; the others get nothing.
std::optional<run::StageTimeline> gather_trace(parallel::Exchange& exchange,
                                               const parallel::Trace& own, int64_t step);

}  // namespace ductile::train
