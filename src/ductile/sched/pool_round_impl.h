#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ductile/sched/policy.h"
#include "ductile/sched/pools.h"
#include "ductile/sched/services.h"

namespace ductile::sched {

// A round as numbers of devices by pool, for policies that first choose how many devices a job gets
// of which pool, and then on which nodes. What services take, and what jobs hold that must keep it,
// is set aside before; the policy chooses for the others.
class PoolRound {
 public:
  // Nodes that leave before `horizon` count as gone. `services_take`: whether services may take the
  // devices of jobs that may be preempted. The round must outlive this.
  PoolRound(const Round& round, double horizon, ServicesTake services_take);

  const Round& round() const { return round_; }
  const std::vector<Pool>& pools() const { return pools_; }
  // Devices of each pool that are not set aside; the choices made do not change it. May be negative
  // where what must stay is on nodes that leave.
  const std::vector<int64_t>& devices() const { return devices_; }
  int32_t region_of(int32_t pool) const {
    return round_.cluster
        .cluster_region[static_cast<size_t>(pools_[static_cast<size_t>(pool)].cluster)];
  }

  // Of a job by its index in the round: whether it is a service, or must keep what it has.
  bool set_aside(size_t job) const { return !reasons_[job].empty(); }
  const std::string& reason(size_t job) const { return reasons_[job]; }  // of one set aside
  int32_t held_pool(size_t job) const { return held_pool_[job]; }        // now; -1: it waits

  // The job is to have so many devices of the pool; without a choice it has none. `movable`:
  // whether it may be moved within the pool to make room for a larger one.
  void choose(size_t job, int32_t pool, int32_t devices, bool movable = true) {
    chosen_[job] = {pool, devices, movable};
  }
  // Puts all choices on nodes: a job that keeps pool and number keeps its nodes if they stay. What
  // does not fit on nodes of its own is spread over what is left, and has nothing if the choices
  // exceed the pool. In the order of the round.
  std::vector<Allocation> place() const;

 private:
  struct Choice {
    int32_t pool = -1, devices = 0;
    bool movable = true;
  };
  void spread(const Pool& pool, size_t job, std::vector<Allocation>& next) const;

  const Round& round_;
  double horizon_;
  std::vector<Pool> pools_;
  std::vector<int64_t> devices_;
  std::vector<ServiceGrant> grants_;
  std::vector<int32_t> node_pool_;  // by node
  std::vector<int32_t> held_pool_;
  std::vector<Choice> chosen_;
  std::vector<std::string> reasons_;
};

}  // namespace ductile::sched
