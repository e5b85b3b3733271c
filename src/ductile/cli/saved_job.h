#pragma once

#include "ductile/run/folder.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

// Throws conflict where the job is another one than that of the run's newest checkpoint in what
// shapes the result: a worker would refuse it as a failure of the run. What cannot be read is left
// to the worker, and so is the number of threads.
void check_saved_job(const run::RunFolder& folder, const spec::JobOptions& job);

}  // namespace ductile::cli
