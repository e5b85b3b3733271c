#include "ductile/sim/experiment.h"

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/sim/lower_bound.h"

namespace ductile::sim {
namespace {

ExperimentOptions small_experiment() {
  ExperimentOptions options;
  options.policies = {"fifo", "sia"};
  options.first_seed = 3;
  options.num_seeds = 2;
  options.load = 2;
  options.synthetic.jobs = 5;
  options.synthetic.hours = 0.25;
  options.keep_history = true;
  return options;
}

// What the experiment should do in each of its runs, written out.
ExperimentRun by_hand(const ExperimentOptions& options, Workload workload,
                      const std::string& policy, int64_t seed) {
  Catalog catalog = built_in_catalog();
  const sched::Cluster cluster = sched::homogeneous_cluster();
  compress(workload, options.load);
  if (options.unique) make_unique(workload, catalog, static_cast<uint64_t>(seed));
  SimOptions sim = options.sim;
  sim.seed = static_cast<uint64_t>(seed);
  sim.interval = sched::usual_interval(policy);
  const auto decider = sched::make_policy(policy, {sim.seed, sim.interval});
  ExperimentRun run;
  run.result = simulate(workload, catalog, cluster, *decider, sim);
  run.summary = summarise(run.result, workload, catalog, cluster);
  if (options.bound) run.least_mean_jct = lower_bound(workload, catalog, cluster).mean_jct;
  return run;
}

void expect_equal(const ExperimentRun& a, const ExperimentRun& b) {
  EXPECT_EQ(to_json(a.result), to_json(b.result));
  EXPECT_EQ(a.summary.mean, b.summary.mean);
  EXPECT_EQ(a.least_mean_jct, b.least_mean_jct);
}

TEST(Experiment, RunsEachPolicyOnEachSyntheticWorkloadOncePerSeed) {
  ExperimentOptions options = small_experiment();
  options.unique = true;
  options.bound = true;
  std::vector<std::string> seen;
  size_t runs_begun = 0;
  const ExperimentWatch watch{
      [&](const Workload& workload) { seen.push_back(workload.name); },
      [&](size_t run, const std::string&, const Workload&, const SimProgress&) {
        runs_begun = std::max(runs_begun, run + 1);
      }};
  const auto runs =
      run_experiment(options, {}, built_in_catalog(), sched::homogeneous_cluster(), watch);
  ASSERT_EQ(runs.size(), num_runs(options, 0));
  EXPECT_EQ(runs_begun, runs.size());
  EXPECT_EQ(seen, (std::vector<std::string>{"synthetic-3", "synthetic-4"}));
  size_t i = 0;
  for (const int64_t seed : {3, 4}) {
    SyntheticOptions synthetic = options.synthetic;
    synthetic.seed = static_cast<uint64_t>(seed);
    const Workload workload = synthetic_workload(synthetic, built_in_catalog());
    for (const std::string policy : {"fifo", "sia"}) {
      SCOPED_TRACE(::testing::Message() << policy << ", seed " << seed);
      EXPECT_EQ(runs[i].seed, seed);
      EXPECT_EQ(runs[i].result.policy, policy);
      expect_equal(runs[i++], by_hand(options, workload, policy, seed));
    }
  }
}

TEST(Experiment, TakesTheWorkloadsItIsGivenAndEstimatesTheBoundOfEachOnce) {
  ExperimentOptions options = small_experiment();
  options.bound = true;
  std::vector<Workload> workloads;
  for (const uint64_t seed : {11, 12}) {
    SyntheticOptions synthetic = options.synthetic;
    synthetic.seed = seed;
    workloads.push_back(synthetic_workload(synthetic, built_in_catalog()));
  }
  size_t estimates = 0;
  const ExperimentWatch watch{
      {}, [&](size_t, const std::string& policy, const Workload&, const SimProgress&) {
        estimates += policy.empty() ? 1 : 0;
      }};
  const auto runs =
      run_experiment(options, workloads, built_in_catalog(), sched::homogeneous_cluster(), watch);
  ASSERT_EQ(runs.size(), num_runs(options, 2));
  EXPECT_EQ(estimates, 2u);
  size_t i = 0;
  for (const int64_t seed : {3, 4}) {
    for (const Workload& workload : workloads) {
      for (const std::string policy : {"fifo", "sia"}) {
        SCOPED_TRACE(::testing::Message() << policy << ", " << workload.name << ", seed " << seed);
        EXPECT_EQ(runs[i].seed, seed);
        expect_equal(runs[i++], by_hand(options, workload, policy, seed));
      }
    }
  }
}

TEST(Experiment, EstimatesABoundForEachSeedOfUniqueApplications) {
  ExperimentOptions options = small_experiment();
  options.policies = {"fifo"};
  options.bound = options.unique = true;
  SyntheticOptions synthetic = options.synthetic;
  synthetic.seed = 11;
  const Workload workload = synthetic_workload(synthetic, built_in_catalog());
  const auto runs =
      run_experiment(options, {workload}, built_in_catalog(), sched::homogeneous_cluster());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_NE(runs[0].least_mean_jct, runs[1].least_mean_jct);
  for (size_t i = 0; i < 2; ++i)
    expect_equal(runs[i], by_hand(options, workload, "fifo", 3 + static_cast<int64_t>(i)));
}

TEST(Experiment, AveragesOnePolicyAndKeepsHistoryOnlyWhereAsked) {
  ExperimentOptions options = small_experiment();
  options.keep_history = false;
  const auto runs = run_experiment(options, {}, built_in_catalog(), sched::homogeneous_cluster());
  ASSERT_EQ(runs.size(), 4u);
  for (const ExperimentRun& run : runs) {
    EXPECT_TRUE(run.result.timeline.empty());
    EXPECT_TRUE(run.result.rounds.empty());
  }
  EXPECT_DOUBLE_EQ(average_of(runs, "sia").mean, (runs[1].summary.mean + runs[3].summary.mean) / 2);
}

}  // namespace
}  // namespace ductile::sim
