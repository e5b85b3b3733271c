#pragma once

#include <filesystem>
#include <string>

#include "ductile/sched/cluster.h"
#include "ductile/sched/policy.h"
#include "ductile/sim/application.h"
#include "ductile/sim/simulator.h"
#include "ductile/sim/workload.h"

// What several tests of the simulator share.
namespace ductile::sim::testing {

inline const std::filesystem::path kTraces =
    std::filesystem::path(DUCTILE_SOURCE_DIR) / "../shared/data/cluster-traces";

inline const Catalog& catalog() {
  static const Catalog made = built_in_catalog();
  return made;
}

// A run in which every round is checked, with the interval that is usual for the policy.
inline SimResult run(const std::string& policy, const Workload& workload,
                     const sched::Cluster& cluster, SimOptions options = {},
                     const Catalog& apps = catalog()) {
  options.check = true;
  options.interval = sched::usual_interval(policy);
  const auto made = sched::make_policy(policy, {options.seed, options.interval});
  return simulate(workload, apps, cluster, *made, options);
}

inline double mean_jct(const SimResult& result) {
  double sum = 0;
  for (const JobResult& job : result.jobs) sum += job.jct();
  return sum / static_cast<double>(result.jobs.size());
}

}  // namespace ductile::sim::testing
