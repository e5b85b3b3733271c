#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/sim/metrics.h"
#include "ductile/sim/simulator.h"

// Compares policies: each policy runs on each workload, once per seed.
namespace ductile::sim {

struct ExperimentOptions {
  std::vector<std::string> policies;  // names that sched::make_policy() knows
  int64_t first_seed = 0, num_seeds = 1;
  double load = 1;                    // arrivals are this many times as dense
  std::optional<double> interval;     // default: that of each policy
  std::optional<double> device_cost;  // default: that of each policy
  bool unique = false;                // whether each job is the only one of its application
  bool bound = false;                 // whether to estimate the least possible: lower_bound()
  bool keep_history = false;          // whether to keep the timeline and the rounds of each result
  SyntheticOptions synthetic;         // without workloads: one of these per seed, with that seed
  SimOptions sim;                     // each run sets its own seed, interval and progress
};

// One policy on one workload.
struct ExperimentRun {
  SimResult result;
  Summary summary;
  int64_t seed = 0;
  double least_mean_jct = 0;  // with ExperimentOptions::bound
};

// Functions that are called during an experiment; each of them may be empty.
struct ExperimentWatch {
  // Receives each workload before its runs, as it is simulated (except for `unique`).
  std::function<void(const Workload&)> on_workload;
  // Run `run` of num_runs() goes on; `policy` is empty while the bound of the workload is
  // estimated.
  std::function<void(size_t run, const std::string& policy, const Workload&, const SimProgress&)>
      on_progress;
};

size_t num_runs(const ExperimentOptions& options, size_t num_workloads);

// Returns the runs: for each seed all workloads, and for each workload all policies, so that
// results which are compared come soon after each other. The bound of a workload from a file is
// estimated once, or with `unique` once per seed.
std::vector<ExperimentRun> run_experiment(const ExperimentOptions& options,
                                          std::vector<Workload> workloads, const Catalog& catalog,
                                          const sched::Cluster& cluster,
                                          const ExperimentWatch& watch = {});

// The average() of the summaries of one policy's runs.
Summary average_of(const std::vector<ExperimentRun>& runs, const std::string& policy);
// The estimate of the least mean completion time (ExperimentOptions::bound), over all runs: there
// are as many of each policy.
double mean_bound(const std::vector<ExperimentRun>& runs);

// What `ductile sim --json` prints, besides the conditions: the cluster, the average of each
// policy, and each run.
nlohmann::ordered_json to_json(const std::vector<ExperimentRun>& runs,
                               const ExperimentOptions& options, const sched::Cluster& cluster);

}  // namespace ductile::sim
