// Fixed sizes by tier: who comes first, who is stopped for whom, and in which region.
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "ductile/sched/policy.h"

namespace ductile::sched {
namespace {

JobView asking(JobId id, Tier tier, int32_t devices) {
  JobView job;
  job.id = id;
  job.name = "job" + std::to_string(id);
  job.arrival = static_cast<double>(id);
  job.scaling = Scaling::rigid;
  job.tier = tier;
  job.requested_devices = job.min_devices = job.max_devices = devices;
  job.types.resize(1);
  return job;
}

// What each job holds after a round, which is checked; the views hold it from then on.
std::map<JobId, int32_t> decide(Policy& policy, const Cluster& cluster,
                                std::vector<JobView>& jobs) {
  const Round round{0, 60, cluster, jobs};
  const Decisions decisions = policy.decide(round);
  check_decisions(round, decisions);
  for (const Decision& change : decisions.changes)
    for (JobView& job : jobs)
      if (job.id == change.job) job.allocation = change.allocation;
  std::map<JobId, int32_t> out;
  for (const JobView& job : jobs) {
    out[job.id] = device_count(job.allocation);
    EXPECT_FALSE(policy.explain(job.id).empty()) << job.name;
  }
  return out;
}

using Held = std::map<JobId, int32_t>;

TEST(TierPolicies, ServeHigherTiersFirstAndWithinOneWhoCameFirst) {
  for (const char* name : {"tiers", "priority"}) {
    const auto policy = make_policy(name);
    const Cluster cluster = homogeneous_cluster(2, 4);
    std::vector<JobView> jobs{asking(1, Tier::basic, 4), asking(2, Tier::standard, 4),
                              asking(3, Tier::standard, 4), asking(4, Tier::premium, 2)};
    EXPECT_EQ(decide(*policy, cluster, jobs), (Held{{1, 0}, {2, 4}, {3, 0}, {4, 2}})) << name;
    jobs.push_back(asking(5, Tier::basic, 2));  // overtakes those that do not fit
    EXPECT_EQ(decide(*policy, cluster, jobs), (Held{{1, 0}, {2, 4}, {3, 0}, {4, 2}, {5, 2}}));
  }
}

TEST(TierPolicies, OnlyPriorityStopsTheLowestAndLastToCome) {
  const Cluster cluster = homogeneous_cluster(2, 4);
  const std::vector<JobView> first{asking(1, Tier::standard, 2), asking(2, Tier::basic, 2),
                                   asking(3, Tier::basic, 2), asking(4, Tier::standard, 2)};
  const auto tiers = make_policy("tiers"), priority = make_policy("priority");
  std::vector<JobView> jobs = first;
  decide(*tiers, cluster, jobs);
  jobs.push_back(asking(5, Tier::premium, 3));
  std::vector<JobView> same = jobs;
  EXPECT_EQ(decide(*tiers, cluster, same), (Held{{1, 2}, {2, 2}, {3, 2}, {4, 2}, {5, 0}}));
  // The two basic ones make room for three, and one of them cannot run beside it.
  EXPECT_EQ(decide(*priority, cluster, jobs), (Held{{1, 2}, {2, 0}, {3, 0}, {4, 2}, {5, 3}}));
  EXPECT_NE(priority->explain(3).find("stops for job5"), std::string::npos) << priority->explain(3);
  // Nobody is stopped for one of its own tier, nor where that would not be enough.
  jobs.push_back(asking(6, Tier::standard, 2));
  jobs.push_back(asking(7, Tier::premium, 6));
  EXPECT_EQ(decide(*priority, cluster, jobs),
            (Held{{1, 2}, {2, 0}, {3, 0}, {4, 2}, {5, 3}, {6, 0}, {7, 0}}));
}

TEST(TierPolicies, WhatMayNotBePreemptedIsNotStopped) {
  const auto policy = make_policy("priority");
  const Cluster cluster = homogeneous_cluster(1, 4);
  std::vector<JobView> jobs{asking(1, Tier::basic, 2), asking(2, Tier::basic, 2)};
  jobs[1].preemptible = false;
  decide(*policy, cluster, jobs);
  jobs.push_back(asking(3, Tier::premium, 2));
  EXPECT_EQ(decide(*policy, cluster, jobs), (Held{{1, 0}, {2, 2}, {3, 2}}));
}

// Only what it holds there makes room in a cluster.
TEST(TierPolicies, AJobOverSeveralClustersCountsInEachByItsPart) {
  const auto policy = make_policy("priority");
  Cluster cluster;
  cluster.add_nodes("t4", 2, 4, "a");
  cluster.add_nodes("t4", 2, 4, "b");
  std::vector<JobView> jobs{asking(1, Tier::standard, 4)};
  EXPECT_EQ(decide(*policy, cluster, jobs), (Held{{1, 4}}));
  jobs.push_back(asking(2, Tier::basic, 12));
  EXPECT_EQ(decide(*policy, cluster, jobs), (Held{{1, 4}, {2, 12}}));
  jobs.push_back(asking(3, Tier::premium, 8));
  EXPECT_EQ(decide(*policy, cluster, jobs), (Held{{1, 4}, {2, 0}, {3, 8}}));
}

TEST(TierPolicies, AJobIsInOneClusterOfTheRegionsWhereItMayBe) {
  for (const char* name : {"tiers", "priority"}) {
    const auto policy = make_policy(name);
    Cluster cluster;
    cluster.add_nodes("t4", 2, 4, "main", "north");
    cluster.add_nodes("t4", 2, 4, "main", "south");
    std::vector<JobView> jobs;
    for (JobId id = 0; id < 4; ++id) {
      jobs.push_back(asking(id, Tier::basic, 6));
      jobs.back().region = 1;
      jobs.back().movable = id != 3;
    }
    // Its home first, then the other one; the third has 2 devices in each, which it cannot use.
    EXPECT_EQ(decide(*policy, cluster, jobs), (Held{{0, 6}, {1, 6}, {2, 0}, {3, 0}})) << name;
    for (const NodeShare& share : jobs[0].allocation) EXPECT_GE(share.node, 2);
    for (const NodeShare& share : jobs[1].allocation) EXPECT_LT(share.node, 2);
    jobs.erase(jobs.begin(), jobs.begin() + 3);
    EXPECT_EQ(decide(*policy, cluster, jobs), (Held{{3, 6}}));
    for (const NodeShare& share : jobs[0].allocation) EXPECT_GE(share.node, 2);
    // One that is larger than each cluster would wait for ever in one.
    std::vector<JobView> large{asking(9, Tier::basic, 12)};
    EXPECT_EQ(decide(*policy, cluster, large), (Held{{9, 12}}));
  }
}

}  // namespace
}  // namespace ductile::sched
