#pragma once

#include "ductile/base/json_value.h"
#include "ductile/cli/console.h"
#include "ductile/run/folder.h"

namespace ductile::cli {

// The numbers of a run that people ask for first; `done` is its `end` event, with `tuning`
// (run/tuning_cost.h) where there was some, and `last_batch` where hyperparameters changed.
void print_summary(Console& console, const nlohmann::ordered_json& done,
                   const run::RunFolder& folder);

}  // namespace ductile::cli
