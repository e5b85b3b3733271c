#pragma once

#include "ductile/sched/job.h"

// Goodput of a job on a device type, also on types where it never ran with several devices (Sia,
// Jayaram Subramanya et al., SOSP'23, section 3.2).
namespace ductile::sched {

// Goodput (progress per second, in samples of batch M0) on `devices` devices of `nodes` nodes of
// `type`, the batch chosen as the job's scaling allows:
//  - if the job brings plans: that of its best one for these devices;
//  - if the type is fitted: from its model;
//  - else from a fitted type B: rate(type, K) = unit_rate(type) / unit_rate(B) * rate(B, K);
//  - else unit_rate(type) times the number of units: perfect scaling until something is known.
// `per_node` is the number of devices per node of each type, to count nodes on B. The result is 0
// if nothing fits. devices is a multiple of the type's unit.
double estimated_goodput(const JobView& job, int32_t type, int32_t nodes, int32_t devices,
                         std::span<const int32_t> per_node);

// Progress per second, in samples of batch M0, of a job that runs by this plan.
double goodput(const JobPlan& plan, const GradientNoise& noise, int32_t init_batch);

// The plan of the highest goodput for exactly so many devices of a type, the first of equals; -1:
// there is none.
int32_t best_plan(std::span<const JobPlan> plans, int32_t type, int32_t devices,
                  const GradientNoise& noise, int32_t init_batch);

// The fitted type from which estimates for `type` are taken: `type` itself, or else the first other
// one, or -1.
int32_t reference_type(const JobView& job, int32_t type);

}  // namespace ductile::sched
