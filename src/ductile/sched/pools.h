#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/sched/cluster.h"
#include "ductile/sched/job.h"

namespace ductile::sched {

// The nodes of one type in one cluster: what a job can be spread over.
struct Pool {
  int32_t cluster = 0;
  int32_t type = 0;
  int32_t per_node = 0;        // devices of its largest node
  int32_t whole_nodes = 0;     // usable nodes of that size
  int64_t devices = 0;         // usable now
  std::vector<int32_t> nodes;  // ids, rising
};

// All pools, in order of cluster, then type. A node that is announced to leave before `horizon`
// counts as not usable: nothing is to be started there and what runs is to move away in time.
std::vector<Pool> find_pools(const Cluster& cluster, double horizon);
// Brings counts up to date where only the state of nodes has changed.
void refresh_pools(const Cluster& cluster, double horizon, std::vector<Pool>& pools);
bool usable_until(const Cluster& cluster, int32_t node, double horizon);

// Numbers of devices a job is offered in a pool: its unit times powers of two up to a node, then
// whole nodes (every number of nodes up to 16, then fewer and fewer). Any such choices within the
// pool's devices can be placed so that no node is shared by two jobs on several nodes (Sia,
// SOSP'23, section 3.3). Rising; none above `most` or below `least`.
std::vector<int32_t> device_counts(const Pool& pool, int32_t unit, int32_t least, int32_t most);

// What a job wants of a pool, and what it holds.
struct PlacementRequest {
  int32_t job = 0;  // the caller's index
  int32_t devices = 0;
  bool movable = true;               // may be put elsewhere to make room for others
  const Allocation* held = nullptr;  // now, in this pool and of this size: kept where it can be
  bool talks = true;  // over the network, if on several nodes; a service's replicas do not
};

struct PlacementResult {
  std::vector<std::pair<int32_t, Allocation>> placed;  // job, its devices; held ones included
  std::vector<int32_t> unplaced;                       // no room without splitting nodes
  int32_t moved = 0;  // held their size but were moved to make room
};

// Devices for each request within the pool. Held devices are kept wherever all of their nodes are
// usable; larger requests are served first; single-node ones go to the fullest node they fit on;
// where fragments are in the way, smaller movable jobs are moved. At most one multi-node job
// touches a node. A pure function: equal inputs, equal placement.
PlacementResult place(const Cluster& cluster, const Pool& pool, double horizon,
                      std::vector<PlacementRequest> requests);

}  // namespace ductile::sched
