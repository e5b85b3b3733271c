#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

// What `load` makes of what `newest` says; and again, as often as is reasonable, where that was
// removed in between, as by a run that goes on and keeps few checkpoints. Throws what `load` throws
// where there is nothing newer, and unavailable where that never ends.
std::unique_ptr<serving::Model> load_newest(
    const std::function<std::optional<int64_t>()>& newest,
    const std::function<std::unique_ptr<serving::Model>(std::optional<int64_t>)>& load);

}  // namespace ductile::train
