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
  const Workload workload =
      read_workload(kTraces / "pollux/workloads" / (name + ".csv"), catalog);
  const auto expected = nlohmann::json::parse(
      read_file(kTraces / "pollux/results/jobload" / (policy + "-1.0.json")));
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

}  // namespace
}  // namespace ductile::sim
