// Services, pipelines, promises, checkpoints and announced losses in whole simulations.
#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/sched/queueing.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/simulator.h"
#include "ductile/sim/testing/checked_run.h"

namespace ductile::sim {
namespace {

using testing::catalog;
using testing::kTraces;
using testing::run;

TEST(ServiceSpec, IsLinearBetweenItsPointsAndRepeats) {
  const ServiceSpec spec{{{0, 2}, {100, 12}, {200, 2}}, 10, 0.5, 1, 1000};
  EXPECT_DOUBLE_EQ(spec.load_at(0), 2);
  EXPECT_DOUBLE_EQ(spec.load_at(50), 7);
  EXPECT_DOUBLE_EQ(spec.load_at(350), 7);
  EXPECT_DOUBLE_EQ(spec.peak(0, 50), 7);
  EXPECT_DOUBLE_EQ(spec.peak(50, 150), 12);
  EXPECT_DOUBLE_EQ(spec.peak(220, 340), 12);
}

TEST(ServiceRun, AnswersWhatTheQueueModelSays) {
  const ServiceSpec spec{{{0, 25}}, 10, 0.3, 2, 1000};
  const std::vector<std::string> types = {"t4"};
  ServiceRun service(spec, catalog().find("bert"), types, 100, 30);
  service.set(100, sched::Allocation{{0, 4}, {1, 4}}, 0);  // four replicas, ready at 130
  service.pass(630);
  EXPECT_NEAR(service.record().requests, 530 * 25, 1e-6);
  EXPECT_NEAR(service.record().on_time, 500 * 25 * sched::on_time_share(25, 4, 10, 0.3), 1e-6);
  EXPECT_NEAR(service.record().overloaded_seconds, 30, 1e-9);
  service.set(630, sched::Allocation{{1, 4}, {2, 2}}, 0);  // a node goes, a new one starts
  EXPECT_EQ(service.ready(630), 2);
  EXPECT_EQ(service.ready(660), 3);
  service.pass(5000);
  EXPECT_NEAR(service.record().requests, 1000 * 25, 1e-6);
}

TEST(Workloads, ServicesAndCheckpointsReadAsWritten) {
  SyntheticOptions options;
  options.jobs = 5;
  options.services = 2;
  Workload made = synthetic_workload(options, catalog());
  made.jobs[1].checkpoint_every = 600;
  const Workload read = parse_workload(to_csv(made), "w.csv", catalog());
  ASSERT_EQ(read.jobs.size(), 7u);
  for (size_t j = 0; j < 7; ++j) {
    EXPECT_EQ(read.jobs[j].checkpoint_every, made.jobs[j].checkpoint_every);
    ASSERT_EQ(read.jobs[j].service.has_value(), made.jobs[j].service.has_value());
    if (read.jobs[j].service) {
      EXPECT_EQ(read.jobs[j].service->load, made.jobs[j].service->load);
    }
  }
  for (const char* load : {"x", "0:1;0:2", "5:1", "1;2", "0:1;"}) try {
      parse_workload(
          "name,time,application,num_replicas,load\na,0,bert,1," + std::string(load) + "\n",
          "w.csv", catalog());
      FAIL() << load;
    } catch (const Error& e) {
      EXPECT_NE(e.message().find("w.csv:2: column 'load'"), std::string::npos) << e.message();
    }
}

// Ductile scales a service with its load; other policies keep it at its floor.
TEST(Services, AreServedAtTheirLoad) {
  SyntheticOptions options;
  options.jobs = 30;
  options.hours = 4;
  options.services = 2;
  const Workload workload = synthetic_workload(options, catalog());
  const sched::Cluster cluster = sched::homogeneous_cluster(8, 4);
  const Summary ours = summarise(run("ductile", workload, cluster), workload, catalog(), cluster);
  EXPECT_EQ(ours.services, 2);
  EXPECT_EQ(ours.jobs, 30);
  EXPECT_GT(ours.attained, 0.97);
  EXPECT_GT(ours.worst_hour, 0.9);
  for (const std::string& policy : sched::policy_names()) {
    if (sched::make_policy(policy)->traits().serves) continue;
    const SimResult result = run(policy, workload, cluster);
    for (const Segment& segment : result.timeline)
      if (workload.jobs[segment.job].service) {
        EXPECT_EQ(sched::device_count(segment.allocation), 2) << policy;
      }
  }
}

TEST(Services, GoOnWithTheReplicasThatAreLeft) {
  Workload workload;
  Submission service{.name = "s", .application = "bert", .devices = 2};
  service.service = ServiceSpec{{{0, 50}}, 10, 0.5, 1, 3000};
  workload.jobs = {service};
  SimOptions options;
  options.scenario = parse_scenario("[[fault]]\nkind = \"node_loss\"\nnode = 0\nat = 1000\n", "s");
  const SimResult result = run("ductile", workload, sched::homogeneous_cluster(4, 4), options);
  EXPECT_EQ(result.jobs[0].node_losses, 1);
  EXPECT_EQ(result.jobs[0].restarts, 0);
  EXPECT_GT(result.jobs[0].served->attained(), 0.94);  // 90 s to start, 70 s to be whole again
}

// More rounds than in which a job that trains has to come further.
TEST(Services, MayRunAloneForAsLongAsTheyLive) {
  Workload workload;
  Submission service{.name = "s", .application = "bert", .devices = 2};
  service.service = ServiceSpec{{{0, 5}}, 10, 0.5, 1, 86400};
  workload.jobs = {service};
  SimOptions options;
  options.interval = 8;
  const auto policy = sched::make_policy("ductile", {0, options.interval});
  const SimResult result =
      simulate(workload, catalog(), sched::homogeneous_cluster(1, 4), *policy, options);
  EXPECT_GT(result.rounds.size(), 10000u);
  EXPECT_GT(result.jobs[0].served->attained(), 0.99);
}

TEST(Announced, LossesFindNobodyThere) {
  SyntheticOptions made;
  made.jobs = 25;
  made.hours = 2;
  const Workload workload = synthetic_workload(made, catalog());
  const sched::Cluster cluster = sched::homogeneous_cluster(6, 4);
  SimOptions options;
  options.scenario = parse_scenario(
      "[[fault]]\nkind = \"maintenance\"\nnodes = [0, 1, 2]\nat = 600\nfor = 3000\n"
      "[[fault]]\nkind = \"reclaim\"\nnotice = 200\nat = 900\nevery = 1500\nfor = 900\n",
      "s");
  const SimResult result = run("ductile", workload, cluster, options);
  for (const JobResult& job : result.jobs) EXPECT_EQ(job.node_losses, 0) << job.name;
  int64_t lost = 0;
  for (const JobResult& job : run("tiresias", workload, cluster, options).jobs)
    lost += job.node_losses;
  EXPECT_GT(lost, 0);  // a policy that does not look at announcements
}

TEST(Announced, SpotNodesAreTheOnesThatAreReclaimed) {
  sched::Cluster cluster;
  cluster.add_nodes("t4", 3, 4);
  cluster.add_nodes("t4", 2, 4, "main", "home", true);
  const auto events = plan_faults(
      parse_scenario("[[fault]]\nkind = \"reclaim\"\nat = 0\nevery = 100\ncount = 40\n", "s"),
      cluster, 1, 1e9);
  EXPECT_EQ(events.size(), 80u);
  for (const FaultEvent& event : events) EXPECT_GE(event.node, 3);
}

TEST(Checkpoints, WorkSinceTheLastIsDoneAgain) {
  Workload workload;
  workload.jobs.push_back(
      {.name = "a", .application = "cifar10", .time = 0, .devices = 4, .batch = 512});
  workload.jobs[0].checkpoint_every = 400;
  const sched::Cluster cluster = sched::homogeneous_cluster(2, 4);
  const double calm = run("fifo", workload, cluster).jobs[0].finish;
  SimOptions options;
  // Runs from 90 s: saved at 490 and 890.
  options.scenario = parse_scenario("[[fault]]\nkind = \"node_loss\"\nnode = 0\nat = 1100\n", "s");
  const SimResult result = run("fifo", workload, cluster, options);
  EXPECT_NEAR(result.jobs[0].lost, 210, 1e-6);
  EXPECT_NEAR(result.jobs[0].finish - calm, 210 + 40 + 30, 60);
}

// Premium and Standard windows under load, against the same jobs without tiers.
TEST(Promises, AreKeptWhereCapacityAllows) {
  SyntheticOptions made;
  made.jobs = 60;
  made.hours = 5;
  made.tiers = true;
  const Workload workload = synthetic_workload(made, catalog());
  const sched::Cluster cluster = sched::homogeneous_cluster(16, 4);
  const Summary ours = summarise(run("ductile", workload, cluster), workload, catalog(), cluster);
  ASSERT_GT(ours.tiers[1].windows, 10);
  EXPECT_EQ(ours.tiers[0].kept, ours.tiers[0].windows);
  EXPECT_GE(static_cast<double>(ours.tiers[1].kept),
            0.99 * static_cast<double>(ours.tiers[1].windows));
  const Summary theirs = summarise(run("fifo", workload, cluster), workload, catalog(), cluster);
  EXPECT_LT(theirs.tiers[1].kept, theirs.tiers[1].windows);
}

TEST(Teams, NeverHoldMoreThanTheirQuota) {
  SyntheticOptions made;
  made.jobs = 40;
  made.hours = 2;
  made.teams = 3;
  const Workload workload = synthetic_workload(made, catalog());
  sched::Cluster cluster = sched::homogeneous_cluster(8, 4);
  cluster.teams = {{0, 0, 6}, {2, 0.5, 20}};
  const Summary ours = summarise(run("ductile", workload, cluster), workload, catalog(), cluster);
  ASSERT_EQ(ours.teams.size(), 3u);
  for (const TeamSummary& team : ours.teams) EXPECT_EQ(team.over_quota_hours, 0) << team.team;
  double over = 0;
  for (const TeamSummary& team :
       summarise(run("srtf", workload, cluster), workload, catalog(), cluster).teams)
    over += team.over_quota_hours;
  EXPECT_GT(over, 0);
}

// The published pipelines: 2 stages on dgx-ext, 8 on rtx, nowhere else; 48 micro-batches.
TEST(Pipelines, RunInMultiplesOfTheirStages) {
  if (!fs::exists(kTraces / "sia")) GTEST_SKIP() << "no traces in " << kTraces;
  const Catalog traces = read_catalog(kTraces / "sia/traces");
  const Application& gpt = traces.find("gpt_pmp");
  EXPECT_EQ(gpt.unit("dgx-ext"), 2);
  EXPECT_EQ(gpt.unit("rtx"), 8);
  EXPECT_EQ(gpt.unit("aws"), 0);
  const std::vector<int32_t> two = {2};
  EXPECT_NEAR(gpt.step_time("dgx-ext", two, 48).step, 3 * 49 * 0.144, 1e-9);
  sched::Cluster cluster;
  cluster.add_nodes("aws", 6, 4);
  cluster.add_nodes("dgx-ext", 2, 8);
  cluster.add_nodes("rtx", 3, 8);
  Workload workload = read_workload(kTraces / "sia/workloads/philly/workload-1.csv", traces);
  truncate(workload, 20);
  for (int i = 0; i < 3; ++i)
    workload.jobs.push_back({.name = "gpt-" + std::to_string(i),
                             .application = "gpt_pmp",
                             .time = workload.jobs.back().time,
                             .devices = 2});
  EXPECT_THROW(run("pollux", workload, cluster, {}, traces), Error);
  for (const std::string policy : {"ductile", "sia", "fifo", "tiresias", "gavel", "srtf"}) {
    const SimResult result = run(policy, workload, cluster, {}, traces);
    int32_t most = 0;
    for (const Segment& segment : result.timeline) {
      if (workload.jobs[segment.job].application != "gpt_pmp") continue;
      const std::string& type = cluster.types[cluster.node_type[segment.allocation[0].node]];
      const int32_t devices = sched::device_count(segment.allocation);
      EXPECT_EQ(devices % gpt.unit(type), 0) << policy;
      most = std::max(most, devices / gpt.unit(type));
      if (policy != "ductile" && policy != "sia") {
        EXPECT_EQ(devices, 4) << policy;
      }
    }
    EXPECT_GT(most, 1) << policy;
  }
  // Alone: progress of the traces over the time of a step, epochs rounded to seconds.
  Workload one;
  one.jobs = {workload.jobs.back()};
  one.jobs[0].time = 0;
  one.jobs[0].devices = 1;
  const SimResult result = run("fifo", one, cluster, {}, traces);
  double expected = 60 + 30, before = 0;
  for (int e = 0; e < 2; ++e) {
    expected +=
        (gpt.progress_at(e + 1) - before) * 3 * 49 * 0.144 / noise::gain(gpt.noise(48, e), 4);
    before = gpt.progress_at(e + 1);
  }
  EXPECT_NEAR(result.jobs[0].finish, expected, 2);
}

}  // namespace
}  // namespace ductile::sim
