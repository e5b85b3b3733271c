#pragma once

#include <cstdint>
#include <memory>

#include <nlohmann/json_fwd.hpp>

#include "ductile/spec/job.h"
#include "ductile/train/step_method.h"

namespace ductile::train {

// Bounded staleness (Ho et al., NeurIPS 2013; a tunable of MLtuner, Cui et al. 2018): each virtual
// rank computes its gradient with the weights of up to s updates ago, as the workers of a parameter
// server do that do not wait for each other. By how many is drawn for each update and batch norm
// group anew, from 0 to s alike, by (seed, updates, group) and the state alone, so the result has
// the same bits on any number of workers.
//
// The bound s is Hyper::staleness, so a tuner may change it from one step to the next: it is at
// most spec::most_staleness(). The state holds the weights after the last n updates, and no age
// reaches further back. After an update with the bound s > 0, n is one more than it was, but at
// most s + 1; after one with the bound 0 it is 0. So where the bound grows, the ages grow to it by
// one with each update, as at the start of a run; where it shrinks, what is older is dropped.
//
// Returns `inner` itself for a job without staleness.
std::unique_ptr<StepMethod> with_staleness(std::unique_ptr<StepMethod> inner,
                                           const spec::JobOptions& job);

// The age, from 0 to `most`, of the weights with which virtual rank `rank` computes the update that
// follows `updates` earlier ones.
int64_t staleness_of(const spec::JobOptions& job, int64_t updates, int64_t rank, int64_t most);

// Completes hyperparameters (optim::to_json) that an older version wrote: the staleness was not
// among them, since it was the job's in every step. The second one completes all that the values of
// a state hold.
void add_staleness(nlohmann::json& hyper, const spec::JobOptions& job);
void add_staleness_to_state(nlohmann::json& values, const spec::JobOptions& job);

}  // namespace ductile::train
