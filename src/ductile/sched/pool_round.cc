#include <algorithm>

#include "ductile/sched/policies_impl.h"
#include "ductile/sched/pool_round_impl.h"

namespace ductile::sched {

PoolRound::PoolRound(const Round& round, double horizon, ServicesTake services_take)
    : round_(round),
      horizon_(horizon),
      pools_(find_pools(round.cluster, horizon)),
      node_pool_(static_cast<size_t>(round.cluster.nodes()), -1),
      held_pool_(round.jobs.size(), -1),
      chosen_(round.jobs.size()),
      reasons_(round.jobs.size()) {
  for (size_t p = 0; p < pools_.size(); ++p) {
    devices_.push_back(pools_[p].devices);
    for (const int32_t n : pools_[p].nodes)
      node_pool_[static_cast<size_t>(n)] = static_cast<int32_t>(p);
  }
  const auto take = [&](const Allocation& allocation) {
    for (const NodeShare& share : allocation)
      if (usable_until(round.cluster, share.node, horizon))
        devices_[static_cast<size_t>(node_pool_[static_cast<size_t>(share.node)])] -= share.devices;
  };
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    const JobView& job = round.jobs[i];
    if (job.allocation.empty()) continue;
    held_pool_[i] = node_pool_[static_cast<size_t>(job.allocation.front().node)];
    if (!job.is_fixed()) continue;
    reasons_[i] = reason_of_fixed(job.granted);
    choose(i, held_pool_[i], device_count(job.allocation), false);
    take(job.allocation);
  }
  grants_ = grant_services(round, pools_, horizon, services_take);
  for (const ServiceGrant& grant : grants_) {
    reasons_[grant.job] = grant.reason;
    take(grant.allocation);
  }
}

void PoolRound::spread(const Pool& pool, size_t job, std::vector<Allocation>& next) const {
  std::vector<int32_t> room(node_pool_.size(), 0);
  for (const int32_t n : pool.nodes)
    if (usable_until(round_.cluster, n, horizon_))
      room[static_cast<size_t>(n)] = round_.cluster.usable(n);
  for (const Allocation& held : next)
    for (const NodeShare& share : held) room[static_cast<size_t>(share.node)] -= share.devices;
  std::vector<int32_t> nodes = pool.nodes;
  std::stable_sort(nodes.begin(), nodes.end(), [&](int32_t a, int32_t b) {
    return room[static_cast<size_t>(a)] > room[static_cast<size_t>(b)];
  });
  int32_t missing = chosen_[job].devices;
  Allocation found;
  for (const int32_t n : nodes) {
    const int32_t taken = std::min(missing, room[static_cast<size_t>(n)]);
    if (taken <= 0) break;
    found.push_back({n, taken});
    missing -= taken;
  }
  std::sort(found.begin(), found.end(),
            [](const NodeShare& a, const NodeShare& b) { return a.node < b.node; });
  if (missing == 0) next[job] = std::move(found);
}

std::vector<Allocation> PoolRound::place() const {
  std::vector<Allocation> next(round_.jobs.size());
  std::vector<std::vector<PlacementRequest>> requests(pools_.size());
  for (const ServiceGrant& grant : grants_)
    if (!grant.allocation.empty())
      requests[static_cast<size_t>(grant.pool)].push_back({static_cast<int32_t>(grant.job),
                                                           device_count(grant.allocation), false,
                                                           &grant.allocation, false});
  for (size_t i = 0; i < round_.jobs.size(); ++i) {
    const auto [pool, devices, movable] = chosen_[i];
    if (pool < 0) continue;
    const JobView& job = round_.jobs[i];
    const bool same = pool == held_pool_[i] && devices == device_count(job.allocation);
    requests[static_cast<size_t>(pool)].push_back(
        {static_cast<int32_t>(i), devices, movable, same ? &job.allocation : nullptr, true});
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    PlacementResult placed =
        sched::place(round_.cluster, pools_[p], horizon_, std::move(requests[p]));
    for (auto& [i, allocation] : placed.placed)
      next[static_cast<size_t>(i)] = std::move(allocation);
    for (const int32_t i : placed.unplaced) spread(pools_[p], static_cast<size_t>(i), next);
  }
  return next;
}

}  // namespace ductile::sched
