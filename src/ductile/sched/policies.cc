#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/sched/policies_impl.h"

namespace ductile::sched {

Decisions ReasonedPolicy::decisions(const Round& round, std::vector<Allocation> next,
                                    std::vector<std::string> reasons) {
  DUCTILE_CHECK(next.size() == round.jobs.size() && reasons.size() == round.jobs.size());
  Decisions out;
  reasons_.clear();
  for (size_t i = 0; i < next.size(); ++i) {
    const JobView& job = round.jobs[i];
    reasons_[job.id] = reasons[i];
    if (next[i] != job.allocation)
      out.changes.push_back({job.id, std::move(next[i]), std::move(reasons[i])});
  }
  return out;
}

FreeDevices::FreeDevices(const Cluster& cluster)
    : cluster_(cluster), on_node_(cluster.nodes()), of_type_(cluster.type_count(), 0) {
  for (int32_t n = 0; n < cluster.nodes(); ++n) {
    on_node_[n] = cluster.usable(n);
    of_type_[cluster.node_type[n]] += on_node_[n];
  }
}

bool FreeDevices::take(const Allocation& allocation) {
  for (const NodeShare& share : allocation)
    if (on_node_[share.node] < share.devices) return false;
  for (const NodeShare& share : allocation) {
    on_node_[share.node] -= share.devices;
    of_type_[cluster_.node_type[share.node]] -= share.devices;
  }
  return true;
}

void FreeDevices::give_back(const Allocation& allocation) {
  for (const NodeShare& share : allocation) {
    on_node_[share.node] += share.devices;
    of_type_[cluster_.node_type[share.node]] += share.devices;
  }
}

Allocation FreeDevices::take_most_free_first(int32_t type, int32_t devices) {
  DUCTILE_CHECK(of_type_[type] >= devices, "{} devices of type {}, {} free", devices, type,
                of_type_[type]);
  Allocation allocation;
  while (devices > 0) {
    int32_t best = -1;
    for (int32_t n = 0; n < cluster_.nodes(); ++n)
      if (cluster_.node_type[n] == type && (best < 0 || on_node_[n] > on_node_[best])) best = n;
    const int32_t taken = std::min(on_node_[best], devices);
    allocation.push_back({best, taken});
    on_node_[best] -= taken;
    of_type_[type] -= taken;
    devices -= taken;
  }
  return allocation;
}

std::vector<int32_t> types_by_speed(const JobView& job) {
  std::vector<int32_t> types;
  for (size_t t = 0; t < job.types.size(); ++t)
    if (job.types[t].allowed) types.push_back(static_cast<int32_t>(t));
  std::stable_sort(types.begin(), types.end(), [&](int32_t a, int32_t b) {
    return job.types[a].unit_rate > job.types[b].unit_rate;
  });
  return types;
}

}  // namespace ductile::sched
