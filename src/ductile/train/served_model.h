#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ductile/run/folder.h"
#include "ductile/serving/model.h"
#include "ductile/spec/job.h"

namespace ductile::train {

// The weights of a run, to be served: the version is the step, and the newest is the checkpoint or
// the final weights with the most steps. Images are prepared as `ductile predict` prepares those of
// others.
std::unique_ptr<serving::ModelSource> serve_run(const run::RunFolder& folder,
                                                const spec::JobOptions& job, std::string name);

}  // namespace ductile::train
