// Jobs that are slower while others hold devices of their nodes.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/sim/job_run_impl.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/scenario.h"
#include "ductile/sim/simulator.h"
#include "ductile/sim/testing/checked_run.h"

namespace ductile::sim {
namespace {

using testing::catalog;
using testing::run;

// Of two jobs on one node the longer one is slowed until the other ends; one on another node is
// not.
TEST(Simulator, JobsOnOneNodeSlowOneAnotherWhileBothRun) {
  Workload workload;
  for (const auto& [name, work] : {std::pair("short", 1.0), std::pair("long", 3.0)})
    workload.jobs.push_back({.name = name,
                             .application = "cifar10",
                             .time = 0,
                             .devices = 1,
                             .batch = 128,
                             .work = work});
  const double most =
      built_in_catalog().find("cifar10").epochs * 3.0;  // ends of epochs are rounded
  const sched::Cluster apart = sched::homogeneous_cluster(2, 1);
  const SimResult alone = run("fifo", workload, apart, {.neighbours = 1.5});
  const SimResult plain = run("fifo", workload, apart);
  const SimResult together =
      run("fifo", workload, sched::homogeneous_cluster(1, 2), {.neighbours = 1.5});
  const auto ran = [](const JobResult& job) { return job.finish - job.start - job.paused; };
  for (const int j : {0, 1}) EXPECT_EQ(alone.jobs[j].finish, plain.jobs[j].finish);
  EXPECT_NEAR(ran(together.jobs[0]), 1.5 * ran(alone.jobs[0]), most);
  EXPECT_NEAR(ran(together.jobs[1]), ran(alone.jobs[1]) + ran(together.jobs[0]) * (1 - 1 / 1.5),
              most);
  EXPECT_GT(ran(together.jobs[1]), 1.1 * ran(alone.jobs[1]));
}

// One job has a device beside another job that needs both nodes, until one of these is lost.
TEST(Simulator, AJobWhoseNeighbourLostItsOtherNodeIsAloneAtOnce) {
  Workload workload;
  for (const auto& [name, devices] : {std::pair("a", 1), std::pair("b", 3)})
    workload.jobs.push_back(
        {.name = name, .application = "cifar10", .devices = devices, .batch = 128});
  const sched::Cluster cluster = sched::homogeneous_cluster(2, 2);
  workload.jobs[0].work = 1200 / alone_seconds(workload.jobs[0], catalog().find("cifar10"),
                                               catalog().rules, cluster, 2);
  SimOptions options;
  options.neighbours = 1.5;
  options.interval = 1000;
  const auto ran = [](const SimResult& result) {
    return result.jobs[0].finish - result.jobs[0].start - result.jobs[0].paused;
  };
  Workload alone;
  alone.jobs = {workload.jobs[0]};
  const double most = built_in_catalog().find("cifar10").epochs * 3.0;
  const double beside = 500;
  options.scenario = parse_scenario(
      "[[fault]]\nkind = \"node_loss\"\nnodes = [1]\nat = 1530\nfor = 100000\n", "s");
  const auto result_of = [&](const Workload& w) {
    return simulate(w, catalog(), cluster, *sched::make_policy("fifo"), options);
  };
  EXPECT_NEAR(ran(result_of(workload)), ran(result_of(alone)) + beside * (1 - 1 / 1.5), most);
}

// Also the part in which workers exchange what they have computed.
TEST(Simulator, OthersOnANodeSlowWholeSteps) {
  const Application& app = catalog().find("cifar10");
  const std::vector<std::string> types{"t4"};
  const Submission job{.name = "a", .application = "cifar10", .devices = 8, .batch = 512};
  const auto policy = sched::make_policy("fifo");
  const auto seconds = [&](const Conditions& conditions) {
    sched::FitCache fits;
    sched::SharedMeasurements shared;
    JobRun one(job, app, catalog().rules, types, policy->traits(), fits, shared, {});
    one.reallocate(0, {{0, 4}, {1, 4}}, 0);
    for (double now = 0;; now += 1000)
      if (const auto end = one.advance(now, 1000, conditions)) return *end - 30;
  };
  ASSERT_GT(app.step_time("t4", std::vector<int32_t>{4, 4}, 64).sync, 0);
  EXPECT_NEAR(seconds({.steps = 3}), 3 * seconds({}), 3.0 * app.epochs);
}

}  // namespace
}  // namespace ductile::sim
