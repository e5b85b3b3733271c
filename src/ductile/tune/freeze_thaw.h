#pragma once

#include "ductile/tune/trial_policy.h"

namespace ductile::tune {

// Says that whoever runs the trials runs the best one to its end after the search, beside the total
// budget. Freeze-thaw then forecasts how trials end at the full budget, however little is left, and
// takes new ones as long as a first look at them is paid for. The other policies do the same either
// way. To be said before the first move, and again before restore(): it is no part of what is
// saved.
void finish_best_afterwards(TrialPolicy& policy);

}  // namespace ductile::tune
