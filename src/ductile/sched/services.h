#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ductile/sched/policy.h"
#include "ductile/sched/pools.h"

namespace ductile::sched {

// What one inference service is to hold from this round on.
struct ServiceGrant {
  size_t job = 0;     // index into Round::jobs
  int32_t pool = -1;  // -1: nothing could be found for it
  Allocation allocation;
  std::string reason;
};

// Whether services may take the devices of jobs that may be preempted.
enum class ServicesTake : uint8_t { free_devices, preemptible };

// Devices for the services of a round, before training gets any: first every service's floor, then
// what its load needs (queueing.h), in order of tier, then of id. A service grows at once and
// shrinks where a tenth more load would still not need what it has; it stays in its pool unless its
// floor is not to be had there; replicas lie within one node, on free devices first, then on those
// of jobs that may be preempted unless `take` says otherwise, never on a node that leaves before
// `horizon`, and of one that may not move only in the region of its data. One that is to be spread
// (ServiceView) starts and grows on two nodes at least where that takes nothing from anybody, and
// keeps two while it shrinks; what lies on one node is not moved for it. A pure function.
std::vector<ServiceGrant> grant_services(const Round& round, std::span<const Pool> pools,
                                         double horizon,
                                         ServicesTake take = ServicesTake::preemptible);

}  // namespace ductile::sched
