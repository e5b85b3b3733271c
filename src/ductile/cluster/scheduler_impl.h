#pragma once

#include <tuple>

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

}  // namespace ductile::cluster
