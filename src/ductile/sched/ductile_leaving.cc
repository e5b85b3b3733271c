// Nodes that are announced to leave are offered to nobody, but until then they are there.
#include <algorithm>
#include <cmath>
#include <map>

#include "ductile/sched/ductile_policy_impl.h"

namespace ductile::sched {

namespace {

constexpr size_t kMostTried = 256;  // waiting jobs in a round

// Devices on nodes that leave soon, while jobs are put on them.
class LeavingRoom {
 public:
  explicit LeavingRoom(const Round& round) : cluster_(round.cluster) {
    for (int32_t n = 0; n < cluster_.nodes(); ++n)
      if (cluster_.usable(n) > 0 && !usable_until(cluster_, n, horizon_of(round)))
        left_[n] = cluster_.usable(n);
  }
  bool empty() const { return left_.empty(); }
  void take(const Allocation& allocation) {
    for (const NodeShare& share : allocation)
      if (const auto found = left_.find(share.node); found != left_.end())
        found->second -= share.devices;
  }
  // Whether all of it is here and free.
  bool has(const Allocation& allocation) const {
    return std::all_of(allocation.begin(), allocation.end(), [&](const NodeShare& share) {
      const auto found = left_.find(share.node);
      return found != left_.end() && found->second >= share.devices;
    });
  }
  double until(const Allocation& allocation) const {
    double until = INFINITY;
    for (const NodeShare& share : allocation)
      until = std::min(until, cluster_.node_leaves_at[static_cast<size_t>(share.node)]);
    return until;
  }
  // So many devices of one node of the pool that stays until `end`; empty: there is none.
  Allocation find(const Pool& pool, int32_t devices, double end) const {
    for (const int32_t n : pool.nodes) {
      const Allocation here{{n, devices}};
      if (has(here) && end < until(here)) return here;
    }
    return {};
  }

 private:
  const Cluster& cluster_;
  std::map<int32_t, int32_t> left_;  // by node
};

}  // namespace

// A job as it would be, were all nodes that are here to stay: its configurations and what is left.
DuctilePolicy::Impl::State DuctilePolicy::Impl::as_if_staying(const JobView& job,
                                                              std::span<const Pool> pools) const {
  const ApplicationModel* application =
      options_.share_by_application ? applications_.find(job.application) : nullptr;
  State s;
  s.noise = job.noise;
  if (!s.noise && application) s.noise = application->noise_at(job.progress);
  s.configurations = configurations(job, application, pools, per_node_, options_.growth, s.noise);
  for (const Configuration& c : s.configurations)
    s.best_per_cost = std::max(s.best_per_cost, c.rate / c.devices);
  std::vector<double> parts;
  if (s.best_per_cost > 0) size(job, s, 0, parts);
  return s;
}

// A job on leaving nodes that has no other place stays until the last round before they go, or
// until it ends; then one that waits, and can end there in time, starts. Not those of a team with a
// quota, which was shared out without these nodes.
void DuctilePolicy::Impl::use_leaving_nodes(const Round& round,
                                            std::vector<Allocation>& next) const {
  LeavingRoom room(round);
  if (room.empty()) return;
  const std::vector<Pool> pools = find_pools(round.cluster, round.now);
  for (const Allocation& allocation : next) room.take(allocation);
  const auto has_quota = [&](const JobView& job) {
    return std::any_of(round.cluster.teams.begin(), round.cluster.teams.end(),
                       [&](const Team& team) { return team.id == job.team && team.quota > 0; });
  };
  std::vector<size_t> waiting;
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    const JobView& job = round.jobs[i];
    const State& known = states_.at(job.id);
    if (!next[i].empty() || known.pinned || has_quota(job)) continue;
    if (job.allocation.empty()) {
      waiting.push_back(i);
      continue;
    }
    if (!room.has(job.allocation)) continue;
    double end = round.now + round.interval;
    const State s = as_if_staying(job, pools);
    for (const Configuration& c : s.configurations)
      if (c.pool == known.pool_now && c.devices == device_count(job.allocation))
        end = std::min(end, round.now + job.pause_left + s.remaining / c.rate);
    if (end >= room.until(job.allocation)) continue;
    next[i] = job.allocation;
    room.take(next[i]);
  }
  if (waiting.size() > kMostTried) waiting.resize(kMostTried);
  for (const size_t i : waiting) {
    const JobView& job = round.jobs[i];
    const State s = as_if_staying(job, pools);
    double soonest = INFINITY;
    for (const Configuration& c : s.configurations) {
      const double end = round.now + job.restart_seconds + s.remaining / c.rate;
      if (c.nodes > 1 || end >= soonest) continue;
      Allocation there = room.find(pools[static_cast<size_t>(c.pool)], c.devices, end);
      if (there.empty()) continue;
      next[i] = std::move(there);
      soonest = end;
    }
    room.take(next[i]);
  }
}

}  // namespace ductile::sched
