// How policies stand to each other, from a quarter of the load to many times it, on jobs that are
// drawn anew for this file. Virtual time: the same figures on every machine.
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/sim/job_run_impl.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/simulator.h"
#include "ductile/sim/testing/checked_run.h"

namespace ductile::sim {
namespace {

struct Case {
  double load = 1;
  int32_t nodes = 4;
  double restart = 60;
  std::optional<double> budget;
  double noise = 0;
  bool unique = false;
};

Summary play(const std::string& policy, uint64_t seed, const Case& c) {
  Catalog catalog = built_in_catalog();
  catalog.rules.restart = c.restart;
  SyntheticOptions made;
  made.jobs = 60;
  made.hours = 6 / c.load;
  made.seed = 100 + seed;
  Workload workload = synthetic_workload(made, catalog);
  for (Submission& job : workload.jobs)
    if (job.application == "imagenet") job.work *= 0.1;
  if (c.unique) make_unique(workload, catalog, seed);
  SimOptions options;
  options.seed = seed;
  options.budget = c.budget;
  options.noise = c.noise;
  options.check = true;
  const sched::Cluster cluster = sched::homogeneous_cluster(c.nodes, 4);
  const auto decider = sched::make_policy(policy, {seed, 60});
  return summarise(simulate(workload, catalog, cluster, *decider, options), workload, catalog,
                   cluster);
}

double mean_of(const std::string& policy, const Case& c, double& restarts) {
  double mean = 0;
  restarts = 0;
  for (const uint64_t seed : {1, 2}) {
    const Summary s = play(policy, seed, c);
    mean += s.mean / 2;
    restarts += s.restarts / 2;
  }
  return mean;
}

TEST(Overload, DuctileIsNeverBehindAndItsJobsDoNotTakeTurns) {
  for (const double load : {0.25, 1.0, 4.0, 16.0})
    for (const double restart : {30.0, 200.0}) {
      Case known{load, 4, restart, 1.0}, unknown{load, 4, restart, std::nullopt};
      double restarts = 0, own_restarts = 0;
      const double srtf = mean_of("srtf", known, restarts);
      const double rival =
          std::min(mean_of("sia", unknown, restarts), mean_of("tiresias", unknown, restarts));
      SCOPED_TRACE(fmt::format("load {}, restarts of {} s", load, restart));
      EXPECT_LE(mean_of("ductile", known, own_restarts), std::min(srtf, rival));
      EXPECT_LE(own_restarts, 8);
      EXPECT_LE(mean_of("ductile", unknown, own_restarts), rival);
      EXPECT_LE(own_restarts, 8);
    }
}

TEST(Overload, MoreDevicesAreNeverWorseOnAverage) {
  for (const std::optional<double> budget : {std::optional<double>(1.0), std::optional<double>()}) {
    double before = INFINITY, restarts = 0;
    for (const int32_t nodes : {1, 2, 4, 8, 16, 32}) {
      const double mean = mean_of("ductile", {1, nodes, 60, budget}, restarts);
      EXPECT_LE(mean, 1.01 * before) << nodes << " nodes";
      before = mean;
    }
  }
}

TEST(Overload, ATenthOfNoiseInWhatIsMeasuredCostsLittle) {
  double calm = 0, noisy = 0;
  for (const uint64_t seed : {1, 2, 3, 4}) {
    calm += play("ductile", seed, {1, 8, 30, std::nullopt}).mean;
    noisy += play("ductile", seed, {1, 8, 30, std::nullopt, 0.1}).mean;
  }
  EXPECT_NE(calm, noisy);
  EXPECT_LE(noisy, 1.08 * calm);
}

// What is read again and again is known far better than one reading is.
TEST(Instruments, ReadingsAreAveraged) {
  const Catalog catalog = built_in_catalog();
  const Application& app = catalog.find("deepspeech2");
  const Submission job{.name = "a", .application = "deepspeech2", .devices = 4, .batch = 80};
  const std::vector<std::string> types{"t4"};
  const auto policy = sched::make_policy("ductile");
  double worst = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    sched::FitCache fits;
    sched::SharedMeasurements shared;
    JobRun run(job, app, catalog.rules, types, policy->traits(), fits, shared, {0.1, seed, 0});
    run.reallocate(0, {{0, 4}}, 0);
    double now = 0;
    for (; now < 3000; now += 10) run.advance(now, 10, {});
    ASSERT_TRUE(run.running());
    const sched::Measurements& learned = *shared.of("deepspeech2", "t4");
    const auto readings = learned.readings();
    const auto most = std::max_element(readings.begin(), readings.end());
    ASSERT_GT(*most, 30);
    const sched::StepSample& sample =
        learned.samples()[static_cast<size_t>(most - readings.begin())];
    const StepTime truth = app.step_time("t4", run.counts(), sample.local_batch);
    worst = std::max(worst, std::abs(std::log(sample.step_seconds / truth.step)));
  }
  EXPECT_GT(worst, 0);
  EXPECT_LT(worst, 0.06);
}

// Two equal jobs whose restart takes longer than a round: one after the other, not in turns.
TEST(Overload, ShortestFirstFinishesJobsThatAreEquallyShort) {
  Catalog catalog = built_in_catalog();
  catalog.rules.restart = 250;
  Workload workload;
  for (const char* name : {"a", "b"})
    workload.jobs.push_back({.name = name, .application = "bert", .devices = 4, .batch = 48});
  SimOptions options;
  options.most_seconds = 1e6;
  const auto srtf = sched::make_policy("srtf");
  const SimResult result =
      simulate(workload, catalog, sched::homogeneous_cluster(1, 4), *srtf, options);
  EXPECT_EQ(result.jobs[0].restarts + result.jobs[1].restarts, 0);
}

// Of a job alone on four nodes of one device whose network is 30 times slower for the first
// seconds, or for good.
SimResult alone_with_slow_network(const std::string& seconds, int32_t nodes = 4) {
  Workload workload;
  workload.jobs.push_back({.name = "a",
                           .application = "cifar10",
                           .devices = nodes,
                           .scaling = sched::Scaling::strong,
                           .work = 3});
  SimOptions options;
  options.budget = std::nullopt;
  options.check = true;
  options.scenario = parse_scenario(
      "[[fault]]\nkind = \"slow_network\"\nat = 0\nfactor = 30\n" + seconds, "scenario");
  const auto policy = sched::make_policy("ductile");
  return simulate(workload, built_in_catalog(), sched::homogeneous_cluster(nodes, 1), *policy,
                  options);
}

// Formerly it had left the larger sizes for good, although nobody else wanted the devices.
TEST(Trials, AJobWhoseStartWasSlowHasItsDevicesAgainOnceTheyAreFast) {
  const double calm = alone_with_slow_network("for = 0.001\n").jobs[0].finish;
  const SimResult slow = alone_with_slow_network("for = 900\n");
  EXPECT_LT(slow.jobs[0].finish, 1.35 * calm);
  EXPECT_LE(slow.jobs[0].restarts, 6);
}

TEST(Trials, OfWhatStaysSlowAreFewAndCostLittle) {
  const double one_device = alone_with_slow_network("", 1).jobs[0].finish;
  const SimResult slow = alone_with_slow_network("");
  EXPECT_LT(slow.jobs[0].finish, 1.05 * one_device);
  EXPECT_GE(slow.jobs[0].restarts, 4);
  EXPECT_LE(slow.jobs[0].restarts, 8);
}

// Of equal jobs that left their sizes at once: one trial used to take all idle devices, and the
// others waited for it.
TEST(Trials, EqualJobsAfterASlowStartShareTheIdleDevices) {
  SimOptions options;
  options.budget = std::nullopt;
  options.check = true;
  options.scenario = parse_scenario(
      "[[fault]]\nkind = \"slow_network\"\nat = 0\nfactor = 30\nfor = 900\n", "scenario");
  for (const int32_t count : {3, 4, 5}) {
    Workload workload;
    for (int32_t j = 0; j < count; ++j)
      workload.jobs.push_back({.name = fmt::format("{}", j),
                               .application = "cifar10",
                               .devices = 16 / count,
                               .scaling = sched::Scaling::strong,
                               .work = 10});
    const auto mean_under = [&](const char* name) {
      const auto policy = sched::make_policy(name);
      return testing::mean_jct(simulate(workload, built_in_catalog(),
                                        sched::homogeneous_cluster(16, 1), *policy, options));
    };
    EXPECT_LT(mean_under("ductile"), 1.05 * mean_under("fifo")) << count << " jobs";
  }
}

TEST(Workloads, UniqueJobsHaveAnApplicationEachThatRunsAtASpeedOfItsOwn) {
  Catalog catalog = built_in_catalog();
  const Catalog before = catalog;
  SyntheticOptions made;
  made.jobs = 30;
  Workload workload = synthetic_workload(made, catalog);
  make_unique(workload, catalog, 7);
  std::map<std::string, int> names;
  double spread = 0;
  for (const Submission& job : workload.jobs) {
    EXPECT_EQ(++names[job.application], 1);
    const std::string kind = job.application.substr(0, job.application.find('~'));
    const std::vector<int32_t> counts{4, 4};
    const StepTime own = catalog.find(job.application).step_time("t4", counts, 8);
    const StepTime old = before.find(kind).step_time("t4", counts, 8);
    EXPECT_GT(own.step, 0.3 * old.step);
    EXPECT_LT(own.step, 3 * old.step);
    spread += std::pow(std::log(own.step / old.step), 2) / 30;
  }
  EXPECT_GT(std::sqrt(spread), 0.1);
  EXPECT_LT(std::sqrt(spread), 0.3);
}

TEST(Workloads, ADeviceTypeWithoutAProfileIsNamed) {
  Workload workload;
  workload.jobs.push_back({.name = "a", .application = "bert", .devices = 4, .batch = 48});
  sched::Cluster cluster;
  cluster.add_nodes("h100", 2, 4);
  try {
    simulate(workload, built_in_catalog(), cluster, *sched::make_policy("fifo"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("'h100'"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("rtx"), std::string::npos) << e.message();
  }
}

// What the workers' agents are told decides, not the name of the policy.
TEST(Information, IsTheSameForAllWhereAsked) {
  struct Watcher : sched::Policy {
    std::unique_ptr<sched::Policy> inner = sched::make_policy("sia");
    int64_t rounds = 0, measured = 0, asked = 0;
    std::string_view name() const override { return "watcher"; }
    std::string explain(sched::JobId job) const override { return inner->explain(job); }
    sched::Decisions decide(const sched::Round& round) override {
      ++rounds;
      for (const sched::JobView& job : round.jobs) {
        asked += job.requested_batch > 0;
        for (const sched::TypeModel& type : job.types) measured += type.steps != nullptr;
      }
      return inner->decide(round);
    }
  };
  const Catalog catalog = built_in_catalog();
  SyntheticOptions made;
  made.jobs = 12;
  made.hours = 1;
  Workload workload = synthetic_workload(made, catalog);
  for (Submission& job : workload.jobs) job.work *= 0.05;
  SimOptions options;
  Watcher own, full;
  simulate(workload, catalog, sched::homogeneous_cluster(4, 4), own, options);
  options.information = Information::full;
  simulate(workload, catalog, sched::homogeneous_cluster(4, 4), full, options);
  EXPECT_EQ(own.measured, 0);
  EXPECT_GT(own.asked, 0);
  EXPECT_GT(full.measured, 0);
  EXPECT_EQ(full.asked, 0);
}

// A job that was profiled is known on every number of devices before it starts.
TEST(Information, OfProfiledJobsIsThereWhenTheyArrive) {
  struct Watcher : sched::Policy {
    std::unique_ptr<sched::Policy> inner = sched::make_policy("ductile");
    int64_t arrived = 0, known = 0;
    std::string_view name() const override { return "watcher"; }
    sched::PolicyTraits traits() const override { return inner->traits(); }
    std::string explain(sched::JobId job) const override { return inner->explain(job); }
    sched::Decisions decide(const sched::Round& round) override {
      for (const sched::JobView& job : round.jobs) {
        if (job.started >= 0) continue;
        ++arrived;
        known += job.noise && job.types[0].fitted && job.types[0].max_profiled == 16;
      }
      return inner->decide(round);
    }
  };
  const Catalog shared = built_in_catalog();
  SyntheticOptions made;
  made.jobs = 8;
  made.hours = 2;
  const Workload drawn = synthetic_workload(made, shared);
  double mean[2] = {0, 0};
  for (const bool profiled : {false, true}) {
    Workload workload = drawn;
    Catalog catalog = shared;
    make_unique(workload, catalog, 1);
    SimOptions options;
    options.information = profiled ? Information::profiled : Information::full;
    Watcher watcher;
    const SimResult result =
        simulate(workload, catalog, sched::homogeneous_cluster(4, 4), watcher, options);
    for (const JobResult& job : result.jobs) mean[profiled] += job.jct();
    EXPECT_GT(watcher.arrived, 0);
    EXPECT_EQ(watcher.known, profiled ? watcher.arrived : 0);
  }
  EXPECT_LT(mean[1], mean[0]);
}

}  // namespace
}  // namespace ductile::sim
