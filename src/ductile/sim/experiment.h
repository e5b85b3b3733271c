#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ductile/sim/metrics.h"
#include "ductile/sim/simulator.h"

// Compares policies: each of them on each workload, once per seed.
namespace ductile::sim {

struct ExperimentOptions {
  std::vector<std::string> policies;  // names that sched::make_policy() knows
  int64_t first_seed = 0, num_seeds = 1;
  double load = 1;                    // arrivals so many times as dense
  std::optional<double> interval;     // none: each policy's own
  std::optional<double> device_cost;  // none: each policy's own
  bool unique = false;                // each job is the only one of its application
  bool bound = false;                 // estimate what could be reached: lower_bound()
  bool keep_history = false;          // the timeline and the rounds of each result stay
  SyntheticOptions synthetic;         // without workloads: one of these per seed, with that seed
  SimOptions sim;                     // seed, interval and progress are those of each run
};

// One policy on one workload.
struct ExperimentRun {
  SimResult result;
  Summary summary;
  int64_t seed = 0;
  double least_mean_jct = 0;  // with ExperimentOptions::bound
};

// Told what goes on; either may be empty.
struct ExperimentWatch {
  // A workload as it is simulated, but for `unique`, before its runs.
  std::function<void(const Workload&)> on_workload;
  // `run` of num_runs() goes on; `policy` is empty while the bound of the workload is estimated.
  std::function<void(size_t run, const std::string& policy, const Workload&, const SimProgress&)>
      on_progress;
};

size_t num_runs(const ExperimentOptions& options, size_t num_workloads);

// The runs: of each seed all workloads, of each workload all policies, so that what is compared
// stands side by side early. The bound of a workload from a file is estimated once.
std::vector<ExperimentRun> run_experiment(const ExperimentOptions& options,
                                          std::vector<Workload> workloads, const Catalog& catalog,
                                          const sched::Cluster& cluster,
                                          const ExperimentWatch& watch = {});

// Of one policy's runs: average() of the summaries.
Summary average_of(const std::vector<ExperimentRun>& runs, const std::string& policy);

}  // namespace ductile::sim
