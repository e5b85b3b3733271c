// The published results: the authors' files, and figures measured by running their simulators.
#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/sim/delaunay.h"
#include "ductile/sim/simulator.h"
#include "ductile/sim/testing/checked_run.h"

namespace ductile::sim {
namespace {

using testing::kTraces;
using testing::mean_jct;

SimResult replay(const std::string& policy, const fs::path& traces, const fs::path& workload,
                 const sched::Cluster& cluster) {
  const Catalog catalog = read_catalog(kTraces / traces);
  const auto made = sched::make_policy(policy);
  SimOptions options;
  options.check = true;
  options.interval = sched::usual_interval(policy);
  return simulate(read_workload(kTraces / workload, catalog), catalog, cluster, *made, options);
}

class Replay : public ::testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(Replay, EqualsTheAuthorsResultsToTheSecond) {
  if (!fs::exists(kTraces / "pollux")) GTEST_SKIP() << "no traces in " << kTraces;
  const auto [policy, number] = GetParam();
  const std::string name = "workload-" + std::to_string(number);
  const auto expected = nlohmann::json::parse(
      read_file(kTraces / "pollux/results/jobload" / (std::string(policy) + "-1.0.json")));
  const SimResult result = replay(policy, "pollux/traces", "pollux/workloads/" + name + ".csv",
                                  sched::homogeneous_cluster());
  ASSERT_EQ(result.jobs.size(), expected["jcts"][name].size());
  for (const JobResult& job : result.jobs)
    EXPECT_EQ(job.jct(), expected["jcts"][name][job.name].get<double>()) << job.name;
}

INSTANTIATE_TEST_SUITE_P(Published, Replay,
                         ::testing::Values(std::pair{"tiresias", 1}, std::pair{"tiresias", 4},
                                           std::pair{"optimus", 1}, std::pair{"optimus", 2}));

struct Measured {
  const char *policy, *traces, *workload;
  enum { t4, aws, mixed } cluster;
  double mean;  // s
};

class NearTheMeasuredMean : public ::testing::TestWithParam<Measured> {};

TEST_P(NearTheMeasuredMean, WithinFivePercent) {
  if (!fs::exists(kTraces / "sia")) GTEST_SKIP() << "no traces in " << kTraces;
  const Measured& measured = GetParam();
  sched::Cluster cluster =
      sched::homogeneous_cluster(16, 4, measured.cluster == Measured::aws ? "aws" : "t4");
  if (measured.cluster == Measured::mixed) {
    cluster = {};
    cluster.add_nodes("aws", 6, 4);
    cluster.add_nodes("dgx-ext", 2, 8);
    cluster.add_nodes("rtx", 3, 8);
  }
  const double mean =
      mean_jct(replay(measured.policy, measured.traces, measured.workload, cluster));
  EXPECT_NEAR(mean / measured.mean, 1, 0.05) << mean;
}

INSTANTIATE_TEST_SUITE_P(
    Published, NearTheMeasuredMean,
    ::testing::Values(Measured{"sia", "sia/traces", "sia/workloads/philly/workload-1.csv",
                               Measured::mixed, 1969.4},
                      Measured{"sia", "sia/traces", "sia/workloads/saturn/workload-1.csv",
                               Measured::mixed, 2091.0},
                      Measured{"sia", "sia/traces", "sia/workloads/philly/workload-1.csv",
                               Measured::aws, 6043.6},
                      Measured{"gavel", "sia/traces", "sia/workloads/philly/workload-1.csv",
                               Measured::mixed, 6016.5},
                      Measured{"gavel", "sia/traces", "sia/workloads/saturn/workload-3.csv",
                               Measured::mixed, 9347.3},
                      Measured{"pollux", "pollux/traces", "pollux/workloads/workload-3.csv",
                               Measured::t4, 2185.4}));

}  // namespace
}  // namespace ductile::sim
