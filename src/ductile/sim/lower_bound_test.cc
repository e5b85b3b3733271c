#include "ductile/sim/lower_bound.h"

#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/sched/policy.h"
#include "ductile/sim/simulator.h"

namespace ductile::sim {
namespace {

TEST(LowerBound, LiesBelowEveryPolicyAndAboveRunningAlone) {
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

TEST(LowerBound, TakesJobsWithALengthOfTheirOwnAndRefusesServices) {
  const Catalog catalog = built_in_catalog();
  Workload workload;
  workload.jobs.push_back({.name = "a", .application = "cifar10", .devices = 1, .batch = 128});
  const sched::Cluster cluster = sched::homogeneous_cluster(1, 1);
  const double whole = lower_bound(workload, catalog, cluster, 1).mean_jct - 30;
  workload.jobs[0].work = 1.1 * 1.1;
  EXPECT_NEAR((lower_bound(workload, catalog, cluster, 1).mean_jct - 30) / whole, 1.21, 0.02);
  workload.jobs[0].service = ServiceSpec{};
  EXPECT_THROW(lower_bound(workload, catalog, cluster, 1), Error);
}

// An odd number of devices, and a batch between those of a coarse grid, may be the best.
TEST(LowerBound, KnowsEveryNumberOfDevices) {
  const Catalog catalog = built_in_catalog();
  Workload workload;
  workload.jobs.push_back({.name = "a", .application = "yolov3", .devices = 1, .batch = 8});
  double before = INFINITY;
  for (int32_t nodes = 1; nodes <= 3; ++nodes) {
    sched::Cluster cluster;
    cluster.add_nodes("t4", nodes, 4);
    cluster.add_nodes("t4", 1, nodes);  // 5, 10, 15 devices
    const double solo = lower_bound(workload, catalog, cluster, 0).solo_mean_jct;
    sched::Cluster fewer;
    fewer.add_nodes("t4", nodes, 4);
    EXPECT_LT(solo, lower_bound(workload, catalog, fewer, 0).solo_mean_jct) << nodes;
    EXPECT_LT(solo, before);
    before = solo;
  }
}

}  // namespace
}  // namespace ductile::sim
