#pragma once

#include <cstdint>

#include "ductile/optim/param_layout.h"
#include "ductile/spec/job.h"

namespace ductile::train {

// A step in which nothing is trained has no gradient: throws invalid_argument if all parameters of
// the layout may be frozen before the last step of the run begins. For a run that begins: one that
// goes on may never come to such a step.
void require_trained(const spec::JobOptions& job, const optim::ParamLayout& layout,
                     int64_t train_size);

}  // namespace ductile::train
