#include "ductile/sched/services.h"

#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/sched/ductile_policy.h"
#include "ductile/sched/queueing.h"

namespace ductile::sched {
namespace {

JobView service(JobId id, double load, int32_t floor, double rate, int32_t types = 1) {
  JobView job;
  job.id = id;
  job.name = "service-" + std::to_string(id);
  job.tier = Tier::premium;
  job.service = ServiceView{load, load, 2 / rate, 0.99, floor, {}};
  job.service->rate.assign(static_cast<size_t>(types), rate);
  job.types.resize(static_cast<size_t>(types));
  job.min_devices = 1;
  job.max_devices = 1 << 20;
  return job;
}

JobView training(JobId id, int32_t types = 1) {
  JobView job;
  job.id = id;
  job.name = "job-" + std::to_string(id);
  job.application = "a";
  job.max_devices = 16;
  job.remaining = 1e5;
  job.types.resize(static_cast<size_t>(types));
  for (TypeModel& t : job.types) {
    t.limits = {32, 1024, 8, 256};
    t.unit_rate = 100;
    t.max_profiled = 16;
    t.fitted = true;
    t.perf = {0.01, 0.01, 0.05, 0.001, 0.01, 0.001, 1.5};
  }
  job.noise = GradientNoise{1, 10};
  return job;
}

TEST(Services, GrowWithTheLoadAndKeepTheirFloor) {
  Cluster cluster = homogeneous_cluster(4, 4);
  std::vector<JobView> jobs = {service(0, 5, 2, 10), training(1), training(2), training(3)};
  DuctilePolicy policy;
  int32_t last = 0;
  for (const double load : {5.0, 40.0, 100.0, 60.0, 0.0, 200.0, 3.0}) {
    jobs[0].service->load = jobs[0].service->peak = load;
    const Round round{0, 60, cluster, jobs};
    const Decisions decisions = policy.decide(round);
    check_decisions(round, decisions);
    for (const Decision& d : decisions.changes)
      jobs[static_cast<size_t>(d.job)].allocation = d.allocation;
    const int32_t held = device_count(jobs[0].allocation);
    const int32_t need = replicas_needed(load, 10, 0.2, 0.99, 2);
    EXPECT_GE(held, std::min(need, 16)) << load;
    EXPECT_LE(held, std::max(replicas_needed(1.1 * load, 10, 0.2, 0.99, 2), 2)) << load;
    EXPECT_NE(policy.explain(0).find("floor 2"), std::string::npos) << policy.explain(0);
    last = held;
  }
  EXPECT_EQ(last, 2);
  int32_t trained = 0;
  for (size_t j = 1; j < jobs.size(); ++j) trained += device_count(jobs[j].allocation);
  EXPECT_GT(trained, 8);
}

TEST(Services, LeaveANodeInTimeAndStayWhereThereIsNoOther) {
  Cluster cluster = homogeneous_cluster(2, 4);
  std::vector<JobView> jobs = {service(0, 30, 4, 10)};
  jobs[0].allocation = {{0, 4}};
  cluster.node_leaves_at[0] = 100;
  const auto pools = find_pools(cluster, 120);
  auto grants = grant_services({0, 60, cluster, jobs}, pools, 120);
  ASSERT_EQ(grants.size(), 1u);
  EXPECT_TRUE(std::none_of(grants[0].allocation.begin(), grants[0].allocation.end(),
                           [](const NodeShare& s) { return s.node == 0 && s.devices > 2; }));
  EXPECT_GE(device_count(grants[0].allocation), 4);
  cluster.node_up[1] = 0;  // nowhere to go
  grants = grant_services({0, 60, cluster, jobs}, find_pools(cluster, 120), 120);
  EXPECT_EQ(grants[0].allocation, (Allocation{{0, 4}}));
}

TEST(Services, TakeOnlyWhatTheyMay) {
  Cluster cluster;
  for (const char* region : {"one", "two"}) cluster.add_nodes("t4", 1, 4, "main", region);
  std::vector<JobView> jobs = {service(0, 15, 1, 10), training(1)};  // it needs 4
  jobs[1].allocation = {{0, 3}};
  jobs[0].region = 0;
  jobs[0].movable = false;
  const auto granted = [&](ServicesTake take) {
    return grant_services({0, 60, cluster, jobs}, find_pools(cluster, 120), 120, take)[0]
        .allocation;
  };
  EXPECT_EQ(granted(ServicesTake::preemptible), (Allocation{{0, 4}}));
  EXPECT_EQ(granted(ServicesTake::free_devices), (Allocation{{0, 1}})) << "not in region two";
  jobs[0].movable = true;
  EXPECT_EQ(granted(ServicesTake::free_devices), (Allocation{{1, 4}}));
}

TEST(Services, LieOnTwoNodesWhereTheyAreToBeSpreadAndThatTakesNothingFromAnybody) {
  const Cluster cluster = homogeneous_cluster(3, 4);
  std::vector<JobView> jobs = {service(0, 0, 2, 10), training(1)};
  const auto granted = [&] {
    return grant_services({0, 60, cluster, jobs}, find_pools(cluster, 120), 120)[0].allocation;
  };
  EXPECT_EQ(granted().size(), 1u);
  jobs[0].service->spread = true;
  EXPECT_EQ(granted().size(), 2u);
  EXPECT_EQ(device_count(granted()), 2);
  jobs[1].allocation = {{1, 4}, {2, 4}};
  EXPECT_EQ(granted(), (Allocation{{0, 2}})) << "the others belong to somebody";
  jobs[1].allocation = {};
  jobs[0].allocation = {{0, 3}, {1, 1}};  // load has fallen
  EXPECT_EQ(granted(), (Allocation{{0, 1}, {1, 1}}));
  jobs[0].allocation = {{0, 3}, {1, 1}, {2, 1}};
  EXPECT_EQ(granted(), (Allocation{{0, 1}, {1, 1}})) << "two nodes are enough";
  jobs[0].allocation = {{0, 3}, {1, 1}};
  jobs[0].service->spread = false;
  EXPECT_EQ(granted(), (Allocation{{0, 2}}));
}

TEST(Services, RandomRoundsKeepEveryRule) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed, 5);
    Cluster cluster;
    const int32_t types = 1 + static_cast<int32_t>(rng.below(2));
    for (int32_t t = 0; t < types; ++t)
      cluster.add_nodes("t" + std::to_string(t), 2 + static_cast<int32_t>(rng.below(4)), 4);
    if (rng.below(2)) cluster.teams = {{0, 0.4, 0}, {1, 0.3, 4 + int64_t{rng.below(6)}}};
    std::vector<JobView> jobs;
    for (JobId id = 0; id < 6; ++id) {
      jobs.push_back(rng.below(3) ? training(id, types)
                                  : service(id, rng.uniform(0, 60), 1 + rng.below(3), 10, types));
      jobs.back().team = static_cast<int32_t>(rng.below(2));
      const uint32_t tier = rng.below(3);
      jobs.back().tier = static_cast<Tier>(tier);
      jobs.back().requested_devices = 1 + static_cast<int32_t>(rng.below(8));
    }
    DuctilePolicy policy;
    for (double now = 0; now < 1200; now += 60) {
      const int32_t node = static_cast<int32_t>(rng.below(static_cast<uint32_t>(cluster.nodes())));
      cluster.node_up[static_cast<size_t>(node)] = rng.below(4) > 0;
      cluster.node_leaves_at[static_cast<size_t>(node)] =
          rng.below(3) ? INFINITY : now + rng.below(300);
      for (JobView& job : jobs) {
        std::erase_if(job.allocation,
                      [&](const NodeShare& s) { return !cluster.node_up[s.node] && job.service; });
        if (std::any_of(job.allocation.begin(), job.allocation.end(),
                        [&](const NodeShare& s) { return !cluster.node_up[s.node]; }))
          job.allocation.clear();
        if (job.service) job.service->peak = job.service->load = rng.uniform(0, 60);
        job.window = {now, now, rng.uniform(0, 1000), rng.uniform(0, 1000)};
      }
      const Round round{now, 60, cluster, jobs};
      const Decisions decisions = policy.decide(round);
      ASSERT_NO_THROW(check_decisions(round, decisions)) << "seed " << seed << " at " << now;
      for (const Decision& d : decisions.changes)
        jobs[static_cast<size_t>(d.job)].allocation = d.allocation;
      for (const Team& team : cluster.teams) {
        int64_t trained = 0, serving = 0;
        for (const JobView& job : jobs)
          if (job.team == team.id)
            (job.service ? serving : trained) += device_count(job.allocation);
        // Services are not kept below what they need; training has what the quota leaves.
        if (team.quota > 0) {
          EXPECT_LE(trained, std::max<int64_t>(team.quota - serving, 0))
              << "seed " << seed << " at " << now;
        }
      }
      for (const JobView& job : jobs) EXPECT_FALSE(policy.explain(job.id).empty());
    }
  }
}

// Who is promised devices has them, whatever else would be worth more.
TEST(Promises, GoBeforeAllOtherWork) {
  const Cluster cluster = homogeneous_cluster(2, 4);
  std::vector<JobView> jobs;
  for (JobId id = 0; id < 12; ++id) {
    jobs.push_back(training(id));
    jobs.back().requested_devices = 4;
    jobs.back().remaining = id < 2 ? 1e7 : 1e3;  // the promised ones are the longest by far
    jobs.back().tier = id == 0 ? Tier::premium : id == 1 ? Tier::standard : Tier::basic;
    jobs.back().window = {0, 100, 0, 400};
  }
  DuctilePolicy policy;
  for (const Decision& d : policy.decide({100, 60, cluster, jobs}).changes)
    jobs[static_cast<size_t>(d.job)].allocation = d.allocation;
  EXPECT_GE(device_count(jobs[0].allocation), 4);
  jobs[0].tier = jobs[1].tier = Tier::basic;
  DuctilePolicy other;
  for (JobView& job : jobs) job.allocation.clear();
  for (const Decision& d : other.decide({100, 60, cluster, jobs}).changes)
    jobs[static_cast<size_t>(d.job)].allocation = d.allocation;
  EXPECT_LE(device_count(jobs[0].allocation), 1);
}

}  // namespace
}  // namespace ductile::sched
