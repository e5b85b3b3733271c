#pragma once

#include "ductile/base/paths.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

// Makes the job one that runs by the plan in `file`, as `ductile plan --json` writes it: the plan
// becomes the group train.pipelined, so the job needs the file no more. Throws not_found where
// there is no such file, and invalid_argument, naming file and stage, for what is no plan, does not
// fit the job, or cannot be run yet (replicas, tensor splits, unequal micro-batches).
void set_plan(spec::JobOptions& job, const fs::path& file);

}  // namespace ductile::cli
