#include "ductile/sim/lower_bound.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/sched/policy.h"
#include "ductile/sim/simulator.h"

namespace ductile::sim {
namespace {

TEST(lower_bound, lies_below_every_policy_and_above_running_alone) {
  const Catalog catalog = built_in_catalog();
  const sched::Cluster cluster = sched::homogeneous_cluster(2, 4);
  SyntheticOptions options;
  options.jobs = 12;
  options.hours = 1;
  options.spread = 0;
  Workload workload = synthetic_workload(options, catalog);
  for (Submission& s : workload.jobs) s.work = 1;
  const LowerBound bound = lower_bound(workload, catalog, cluster, 10);
  EXPECT_GE(bound.mean_jct, bound.solo_mean_jct);
  EXPECT_GT(bound.solo_mean_jct, 30);
  for (const char* name : {"ductile", "srtf", "tiresias"}) {
    const auto policy = sched::make_policy(name);
    const SimResult result = simulate(workload, catalog, cluster, *policy);
    double mean = 0;
    for (const JobResult& j : result.jobs)
      mean += j.jct() / static_cast<double>(result.jobs.size());
    EXPECT_LE(bound.mean_jct, mean) << name;
  }
}

TEST(lower_bound, refuses_jobs_it_cannot_bound) {
  const Catalog catalog = built_in_catalog();
  Workload workload;
  workload.jobs.push_back({"a", catalog.applications.begin()->first});
  workload.jobs[0].work = 2;
  EXPECT_THROW(lower_bound(workload, catalog, sched::homogeneous_cluster(1, 1), 1), Error);
}

}  // namespace
}  // namespace ductile::sim
