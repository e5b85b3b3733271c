#pragma once

#include <map>
#include <string>
#include <string_view>

#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/testing/demands.h"

namespace ductile::cluster::testing {

// Jobs that do at once what the scheduler says, in rounds that are kInterval apart.
class ObedientWorld {
 public:
  ObedientWorld(const spec::Cluster& cluster, std::string_view policy)
      : scheduler(cluster, policy, kInterval) {}

  void add(const JobDemand& one) {
    scheduler.add(one);
    jobs[one.id] = one;
    held[one.id] = {};
  }
  void remove(JobId id) {
    scheduler.remove(id);
    jobs.erase(id);
    held.erase(id);
  }
  void decide(int rounds = 1) {
    for (int i = 0; i < rounds; ++i, now += kInterval)
      for (const Allotment& a : scheduler.decide(now)) {
        held.at(a.job) = a.allocation;
        reasons[a.job] = a.reason;
        scheduler.holds(a.job, a.allocation, now);
      }
  }
  bool runs(JobId id) const { return !held.at(id).empty(); }
  int32_t devices(JobId id) const { return sched::device_count(held.at(id)); }

  Scheduler scheduler;
  std::map<JobId, JobDemand> jobs;         // that were added and not removed
  std::map<JobId, spec::Allocation> held;  // by each of them
  std::map<JobId, std::string> reasons;    // of what was said to each last
  double now = 0;                          // of the next round
};

}  // namespace ductile::cluster::testing
