#pragma once

#include "ductile/control/protocol.h"
#include "ductile/parallel/exchange.h"
#include "ductile/spec/job.h"
#include "ductile/train/replica.h"

namespace ductile::train {

// How the members of a generation sum the vectors of this job. The replica is any member's.
parallel::ExchangeLayout exchange_layout(const spec::JobOptions& job, Replica& replica,
                                         const control::GenerationPlan& plan);

}  // namespace ductile::train
