#pragma once

#include <functional>
#include <memory>

#include "ductile/optim/optimizer.h"
#include "ductile/spec/job.h"

namespace ductile::train::testing {

// An optimiser that computes the weights to evaluate: half of the trained ones. Apart from that it
// is job.optimizer, which has no sums of squares. It is for jobs that keep no moving average, since
// that would be evaluated. `asked(n)` is called when this object computes the weights for the n-th
// time.
std::unique_ptr<optim::Optimizer> make_halving_optimizer(const spec::JobOptions& job,
                                                         const optim::ParamLayout& layout,
                                                         std::function<void(int)> asked = {});

}  // namespace ductile::train::testing
