#pragma once

#include <tuple>
#include <vector>

#include "ductile/cluster/scheduler.h"

namespace ductile::cluster {

// Who comes before whom.
inline std::tuple<sched::Tier, double, JobId> turn_of(const sched::JobView& view) {
  return {view.tier, view.arrival, view.id};
}

inline int32_t devices_on(const sched::Allocation& allocation, int32_t node) {
  int32_t out = 0;
  for (const sched::NodeShare& share : allocation)
    if (share.node == node) out += share.devices;
  return out;
}

// Of a job by stages: writes what a policy of these traits is offered, and returns
// Scheduler::whole_sizes().
std::vector<int32_t> offer_pipelines(const JobDemand& demand, const sched::PolicyTraits& traits,
                                     sched::AgentFacts& facts);

}  // namespace ductile::cluster
