// The policies of a fleet: `fleet`, and the plain `queue` and `priority` that it is compared with.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/testing/checked_run.h"

namespace ductile::sim {
namespace {

using sched::Tier;
using testing::run;

// Jobs that ask for 8 devices and may run on 2, 4, 8 or 16, an hour long on 8.
Catalog jobs_of_eight() {
  Application app;
  app.name = "job";
  BatchTrace trace;
  trace.progress = trace.iteration = {3600};
  trace.noise = {{1, 1}};
  app.traces.push_back(trace);
  for (const char* type : {"a100", "v100"})
    for (const auto& [devices, seconds] :
         {std::pair{2, 4.0}, std::pair{4, 2.0}, std::pair{8, 1.0}, std::pair{16, 0.54}})
      app.plans.push_back({"data", type, devices, 1, seconds});
  Catalog catalog;
  catalog.rules.restart = 30;
  catalog.applications.emplace("job", std::move(app));
  return catalog;
}

sched::Cluster two_regions(int32_t first, int32_t second) {
  sched::Cluster cluster;
  cluster.add_nodes("v100", first, 8, "main", "region-0");
  if (second > 0) cluster.add_nodes("v100", second, 8, "main", "region-1");
  return cluster;
}

Submission job(int number, double time, Tier tier, double hours, const std::string& region = "") {
  Submission out;
  out.name = "j" + std::to_string(number);
  out.application = "job";
  out.time = time;
  out.devices = 8;
  out.scaling = sched::Scaling::strong;
  out.tier = tier;
  out.work = hours;
  out.region = region;
  return out;
}

// Half as much again as two regions can do, for six hours.
Workload overload(uint64_t seed, double devices) {
  Workload out;
  out.name = "overload";
  Rng rng(seed, 5);
  const double apart = 8 * 3600 / (1.5 * devices);
  for (double now = 0; now < 6 * 3600; now -= apart * std::log(1 - rng.uniform(0, 0.999999))) {
    const uint32_t tier = rng.below(10);
    out.jobs.push_back(job(static_cast<int>(out.jobs.size()), std::floor(now),
                           tier < 2   ? Tier::premium
                           : tier < 5 ? Tier::standard
                                      : Tier::basic,
                           rng.uniform(0.3, 1.7), "region-" + std::to_string(rng.below(2))));
  }
  return out;
}

Summary play(const std::string& policy, const Workload& workload, const sched::Cluster& cluster,
             const std::string& scenario) {
  const Catalog catalog = jobs_of_eight();
  SimOptions options;
  options.seed = 1;
  options.scenario = parse_scenario(scenario, "s.toml");
  return summarise(run(policy, workload, cluster, options, catalog), workload, catalog, cluster);
}

double kept(const Summary& summary, Tier tier) {
  const TierSummary& t = summary.tiers[static_cast<size_t>(tier)];
  return static_cast<double>(t.kept) / static_cast<double>(t.windows);
}

TEST(FleetPolicies, FleetKeepsPremiumWholeWhereAQueueDoesNotAndBasicPaysForIt) {
  const sched::Cluster cluster = two_regions(8, 8);
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    const Workload workload = overload(seed, 128);
    const Summary ours = play("fleet", workload, cluster, "until = 21600\n"),
                  queue = play("queue", workload, cluster, "until = 21600\n"),
                  priority = play("priority", workload, cluster, "until = 21600\n");
    EXPECT_GT(kept(ours, Tier::premium), 0.98);
    EXPECT_GT(kept(ours, Tier::premium), kept(queue, Tier::premium));
    EXPECT_GT(kept(priority, Tier::premium), kept(queue, Tier::premium));
    EXPECT_LT(ours.tiers[2].fraction, queue.tiers[2].fraction);
    EXPECT_GT(ours.busy, 0.95);
    EXPECT_GT(ours.starts, queue.starts);
  }
}

TEST(FleetPolicies, QueueStopsNothing) {
  const Workload workload = overload(4, 128);
  const Summary summary = play("queue", workload, two_regions(8, 8), "");
  EXPECT_EQ(summary.restarts, 0);
  EXPECT_EQ(summary.starts, static_cast<double>(workload.jobs.size()));
}

TEST(FleetPolicies, OnlyFleetLeavesNodesThatAreAnnouncedToGo) {
  const Workload workload = overload(5, 64);
  const std::string faults =
      "lost_work_seconds = 600\n[[fault]]\nkind = \"reclaim\"\nat = 1800\nevery = 900\ncount = 12\n"
      "for = 1200\nnotice = 130\n";
  const Summary ours = play("fleet", workload, two_regions(8, 8), faults),
                queue = play("queue", workload, two_regions(8, 8), faults);
  EXPECT_EQ(ours.hits, 0);
  EXPECT_EQ(ours.redone_hours, 0);
  EXPECT_GT(queue.hits, 3);
  EXPECT_GT(queue.redone_hours, 3 * 8 * 600 / 3600 / 2.0);
}

// Five jobs of eight devices on four nodes: which of those that run is stopped, by policy.
std::vector<double> starts_of(const std::string& policy) {
  Workload workload;
  workload.name = "five";
  workload.jobs = {job(0, 0, Tier::standard, 1), job(1, 0, Tier::basic, 1),
                   job(2, 100, Tier::basic, 1), job(3, 100, Tier::premium, 1),
                   job(4, 1000, Tier::standard, 1)};
  const Catalog catalog = jobs_of_eight();
  const SimResult result = run(policy, workload, two_regions(4, 0), {}, catalog);
  std::vector<double> out;
  for (const JobResult& one : result.jobs) out.push_back(one.restarts);
  out.push_back(result.jobs[4].start);
  return out;
}

TEST(FleetPolicies, PriorityStopsTheLastToComeOfTheLowestTier) {
  const std::vector<double> priority = starts_of("priority"), queue = starts_of("queue");
  EXPECT_EQ(priority, (std::vector<double>{0, 0, 1, 0, 0, 1020}));
  EXPECT_EQ((std::vector<double>(queue.begin(), queue.end() - 1)),
            (std::vector<double>{0, 0, 0, 0, 0}));
  EXPECT_GT(queue.back(), 3600);
}

// All data are in a region of one node; the other one has eight.
TEST(FleetPolicies, JobsGoToARegionWithRoomUnlessTheyMayNot) {
  Workload workload;
  workload.name = "crowded";
  for (int i = 0; i < 8; ++i) {
    workload.jobs.push_back(job(i, 0, Tier::standard, 1, "region-0"));
    workload.jobs.back().movable = i >= 3;
  }
  const Catalog catalog = jobs_of_eight();
  for (const char* policy : {"fleet", "queue", "priority"}) {
    SCOPED_TRACE(policy);
    const SimResult result = run(policy, workload, two_regions(1, 8), {}, catalog);
    int64_t away = 0;
    for (const Segment& segment : result.timeline) {
      const bool here = segment.allocation.front().node == 0;
      if (segment.job < 3)
        EXPECT_TRUE(here) << segment.job;
      else
        away += !here;
    }
    EXPECT_GE(away, 4);
    EXPECT_LT(result.jobs[7].finish, 2 * 3600);
  }
}

// A service that may not move is served where its data are, at what its load needs.
TEST(FleetPolicies, ServicesAreServedInTheRegionOfTheirDataAtTheirLoad) {
  Workload workload;
  workload.name = "served";
  for (int i = 0; i < 2; ++i) {
    Submission service{.name = "s" + std::to_string(i), .application = "bert", .devices = 2};
    service.service = ServiceSpec{{{0, 15}, {3600, 60}, {7200, 15}}, 10, 0.5, 1, 14400};
    service.region = "region-" + std::to_string(i);
    service.movable = false;
    service.tier = Tier::premium;
    workload.jobs.push_back(service);
  }
  sched::Cluster cluster;
  for (const char* region : {"region-0", "region-1"}) cluster.add_nodes("t4", 2, 8, "main", region);
  for (const char* policy : {"fleet", "queue", "priority", "regional"}) {
    SCOPED_TRACE(policy);
    const SimResult result = run(policy, workload, cluster);
    int32_t most = 0;
    for (const Segment& segment : result.timeline) {
      most = std::max(most, sched::device_count(segment.allocation));
      for (const sched::NodeShare& share : segment.allocation)
        EXPECT_EQ(share.node / 2, segment.job);
    }
    EXPECT_GE(most, 6);
    for (const JobResult& job : result.jobs) EXPECT_GT(job.served->attained(), 0.97) << job.name;
  }
}

// A transfer that takes longer than a move can pay off keeps jobs where their data are.
TEST(FleetPolicies, FleetCountsTheTransferOfData) {
  double away[2] = {};
  for (const double transfer : {0.0, 100000.0}) {
    Workload workload = overload(6, 64);
    for (Submission& one : workload.jobs) {
      one.region = "region-0";
      one.transfer = transfer;
    }
    const Catalog catalog = jobs_of_eight();
    SimOptions options;
    options.scenario = parse_scenario("until = 21600\n", "s.toml");
    const SimResult result = run("fleet", workload, two_regions(4, 4), options, catalog);
    for (const Segment& segment : result.timeline)
      away[transfer > 0] += segment.allocation.front().node >= 4;
  }
  EXPECT_GT(away[0], 20);
  EXPECT_LT(away[1], away[0] / 2);
}

TEST(FleetPolicies, FleetRefusesARegionOfTooManyKindsOfNodes) {
  sched::Cluster cluster;
  for (int i = 0; i < 9; ++i) cluster.add_nodes("v100", 1, 8, "c" + std::to_string(i), "region-0");
  Workload workload;
  workload.jobs = {job(0, 0, Tier::basic, 1)};
  try {
    run("fleet", workload, cluster, {}, jobs_of_eight());
    ADD_FAILURE() << "it ran";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_NE(e.message().find("region region-0 has 9 kinds of nodes"), std::string::npos)
        << e.message();
  }
}

}  // namespace
}  // namespace ductile::sim
