#pragma once

#include <cstdint>
#include <memory>

#include "ductile/spec/job.h"
#include "ductile/train/step_method.h"

namespace ductile::train {

// Bounded staleness (Ho et al., NeurIPS 2013; a tunable of MLtuner, Cui et al. 2018): with
// train.staleness = s, each virtual rank computes its gradient with the weights of up to s updates
// ago, as the workers of a parameter server do that do not wait for each other. By how many is
// drawn for each update and batch norm group anew, from 0 to s alike, by (seed, updates, group)
// alone, so the result has the same bits on any number of workers. The state keeps s + 1 copies of
// the weights. Returns `inner` itself if s is 0.
std::unique_ptr<StepMethod> with_staleness(std::unique_ptr<StepMethod> inner,
                                           const spec::JobOptions& job);

// The age, in updates, of the weights with which virtual rank `rank` computes the update that
// follows `updates` earlier ones. At most the number of updates since the first.
int64_t staleness_of(const spec::JobOptions& job, int64_t updates, int64_t rank);

}  // namespace ductile::train
