// The published simulators' results, from the authors' files.
#include <cstdlib>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ductile/sim/simulator.h"

namespace ductile::sim {
namespace {

const fs::path kTraces = fs::path(DUCTILE_SOURCE_DIR) / "../shared/data/cluster-traces";

bool traces_are_there() { return fs::exists(kTraces / "pollux/workloads/workload-1.csv"); }

// Jobs whose completion differs from the file's, and by how much at most.
struct Difference {
  int jobs = 0;
  double most = 0;
};

Difference compare(const std::string& policy, int number) {
  const Catalog catalog = read_catalog(kTraces / "pollux/traces");
  const std::string name = "workload-" + std::to_string(number);
  const Workload workload = read_workload(kTraces / "pollux/workloads" / (name + ".csv"), catalog);
  const auto expected =
      nlohmann::json::parse(read_file(kTraces / "pollux/results/jobload" / (policy + "-1.0.json")));
  const auto made = sched::make_policy(policy);
  SimOptions options;
  options.check = true;
  const SimResult result =
      simulate(workload, catalog, sched::homogeneous_cluster(), *made, options);
  Difference difference;
  double sum = 0;
  for (const JobResult& job : result.jobs) {
    const double off = std::abs(job.jct() - expected["jcts"][name][job.name].get<double>());
    sum += job.jct();
    if (off > 0) ++difference.jobs;
    difference.most = std::max(difference.most, off);
    if (off > 0 && std::getenv("SHOW_JOBS"))
      printf("%s %.0f, expected %.0f\n", job.name.c_str(), job.jct(),
             expected["jcts"][name][job.name].get<double>());
  }
  printf("%s %d: mean %.2f\n", policy.c_str(), number, sum / result.jobs.size());
  return difference;
}

class Replay : public testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(Replay, EqualsTheAuthorsResultsToTheSecond) {
  if (!traces_are_there()) GTEST_SKIP() << "no traces in " << kTraces;
  const auto [policy, number] = GetParam();
  const Difference difference = compare(policy, number);
  EXPECT_EQ(difference.jobs, 0) << "by up to " << difference.most << " s";
}

INSTANTIATE_TEST_SUITE_P(Published, Replay,
                         testing::Values(std::pair{"tiresias", 1}, std::pair{"tiresias", 2},
                                         std::pair{"tiresias", 3}, std::pair{"tiresias", 4},
                                         std::pair{"optimus", 1}, std::pair{"optimus", 2},
                                         std::pair{"optimus", 3}, std::pair{"optimus", 4}));

sched::Cluster sia_cluster() {
  sched::Cluster cluster;
  cluster.add_nodes("aws", 6, 4);
  cluster.add_nodes("dgx-ext", 2, 8);
  cluster.add_nodes("rtx", 3, 8);
  return cluster;
}

double mean_jct(const std::string& policy, const fs::path& traces, const fs::path& file,
                const sched::Cluster& cluster) {
  const Catalog catalog = read_catalog(kTraces / traces);
  const Workload workload = read_workload(kTraces / file, catalog);
  const auto made = sched::make_policy(policy);
  SimOptions options;
  options.check = true;
  options.interval = sched::usual_interval(policy);
  const clock_t t0 = clock();
  const SimResult result = simulate(workload, catalog, cluster, *made, options);
  double sum = 0, restarts = 0, service = 0, dec = 0;
  for (const JobResult& job : result.jobs) {
    sum += job.jct();
    restarts += job.restarts;
    service += job.service;
  }
  for (auto& r : result.rounds) dec += r.decision_seconds;
  printf(
      "%s %s: mean %.1f restarts %.2f GPU h %.1f (%.2f a job) makespan %.0f, %.1f s CPU, %.3f ms a "
      "round of %zu\n",
      policy.c_str(), file.c_str(), sum / result.jobs.size(), restarts / result.jobs.size(),
      service / 3600, service / 3600 / result.jobs.size(), result.end,
      double(clock() - t0) / CLOCKS_PER_SEC, dec / result.rounds.size() * 1000,
      result.rounds.size());
  return sum / static_cast<double>(result.jobs.size());
}

TEST(Published, SiaWithinFivePercent) {
  mean_jct("sia", "sia/traces", "sia/workloads/philly/workload-1.csv", sia_cluster());
  mean_jct("sia", "sia/traces", "sia/workloads/saturn/workload-1.csv", sia_cluster());
  mean_jct("sia", "sia/traces", "sia/workloads/saturn/workload-2.csv", sia_cluster());
  mean_jct("sia", "sia/traces", "sia/workloads/saturn/workload-3.csv", sia_cluster());
  mean_jct("sia", "sia/traces", "sia/workloads/philly/workload-1.csv",
           sched::homogeneous_cluster(16, 4, "aws"));
}
TEST(Published, Gavel) {
  mean_jct("gavel", "sia/traces", "sia/workloads/philly/workload-1.csv", sia_cluster());
  mean_jct("gavel", "sia/traces", "sia/workloads/saturn/workload-1.csv", sia_cluster());
  mean_jct("gavel", "sia/traces", "sia/workloads/saturn/workload-2.csv", sia_cluster());
  mean_jct("gavel", "sia/traces", "sia/workloads/saturn/workload-3.csv", sia_cluster());
}
TEST(Published, Pollux) {
  mean_jct("pollux", "pollux/traces", "pollux/workloads/workload-3.csv",
           sched::homogeneous_cluster());
}

}  // namespace
}  // namespace ductile::sim
