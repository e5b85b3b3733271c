#pragma once

#include "ductile/plan/evaluate.h"

namespace ductile::plan {

// The rules of evaluate.h once more, as plainly as they can be written: no queues, no counters; at
// each instant everything is looked at. For tests. Follows orders that can be carried out.
Timeline slow_evaluate(const Plan& plan, const PlanCosts& costs, const Orders& orders);

}  // namespace ductile::plan
