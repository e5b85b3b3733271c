#include "ductile/sim/experiment.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/sim/lower_bound.h"

namespace ductile::sim {
namespace {

class Experiment {
 public:
  Experiment(const ExperimentOptions& options, const Catalog& catalog,
             const sched::Cluster& cluster, const ExperimentWatch& watch)
      : options_(options), catalog_(catalog), cluster_(cluster), watch_(watch) {}

  std::vector<ExperimentRun> run(std::vector<Workload> workloads) {
    for (Workload& workload : workloads) compress(workload, options_.load);
    for (int64_t s = 0; s < options_.num_seeds; ++s) {
      const int64_t seed = options_.first_seed + s;
      if (workloads.empty()) run_on(synthetic(seed), static_cast<size_t>(s), seed);
      for (size_t w = 0; w < workloads.size(); ++w) run_on(workloads[w], w, seed);
    }
    return std::move(runs_);
  }

 private:
  Workload synthetic(int64_t seed) const {
    SyntheticOptions how = options_.synthetic;
    how.seed = static_cast<uint64_t>(seed);
    Workload workload = synthetic_workload(how, catalog_);
    compress(workload, options_.load);
    return workload;
  }

  // `which`: among the different workloads.
  void run_on(const Workload& workload, size_t which, int64_t seed) {
    if (watch_.on_workload) watch_.on_workload(workload);
    Workload jobs = workload;
    Catalog applications = catalog_;
    if (options_.unique) make_unique(jobs, applications, static_cast<uint64_t>(seed));
    // Unique applications are drawn from the seed, so that each seed has a bound of its own.
    const std::pair bound_of(which, options_.unique ? seed : 0);
    if (options_.bound && !bounds_.contains(bound_of)) {
      if (watch_.on_progress) watch_.on_progress(runs_.size(), "", workload, {});
      bounds_[bound_of] = lower_bound(jobs, applications, cluster_).mean_jct;
    }
    for (const std::string& policy : options_.policies) {
      SimOptions sim = options_.sim;
      sim.seed = static_cast<uint64_t>(seed);
      sim.interval = options_.interval.value_or(sched::usual_interval(policy));
      if (watch_.on_progress) {
        sim.progress = [&](const SimProgress& progress) {
          watch_.on_progress(runs_.size(), policy, workload, progress);
        };
      }
      sched::PolicyOptions how{sim.seed, sim.interval, options_.device_cost};
      how.share_by_application = sim.information != Information::published;
      const auto decider = sched::make_policy(policy, how);
      ExperimentRun run;
      run.seed = seed;
      run.result = simulate(jobs, applications, cluster_, *decider, sim);
      run.summary = summarise(run.result, jobs, applications, cluster_);
      if (options_.bound) run.least_mean_jct = bounds_.at(bound_of);
      if (!options_.keep_history) {
        run.result.timeline.clear();
        run.result.rounds.clear();
      }
      runs_.push_back(std::move(run));
    }
  }

  const ExperimentOptions& options_;
  const Catalog& catalog_;
  const sched::Cluster& cluster_;
  const ExperimentWatch& watch_;
  std::map<std::pair<size_t, int64_t>, double> bounds_;  // by workload and, if unique, seed
  std::vector<ExperimentRun> runs_;
};

}  // namespace

size_t num_runs(const ExperimentOptions& options, size_t num_workloads) {
  return options.policies.size() * static_cast<size_t>(options.num_seeds) *
         std::max<size_t>(num_workloads, 1);
}

std::vector<ExperimentRun> run_experiment(const ExperimentOptions& options,
                                          std::vector<Workload> workloads, const Catalog& catalog,
                                          const sched::Cluster& cluster,
                                          const ExperimentWatch& watch) {
  if (options.bound && options.sim.scenario.until > 0)
    fail(ErrorCode::invalid_argument,
         "the least possible mean is that of all jobs, and the scenario ends before (until); leave "
         "out one of the two");
  return Experiment(options, catalog, cluster, watch).run(std::move(workloads));
}

Summary average_of(const std::vector<ExperimentRun>& runs, const std::string& policy) {
  std::vector<Summary> summaries;
  for (const ExperimentRun& run : runs)
    if (run.result.policy == policy) summaries.push_back(run.summary);
  return average(summaries);
}

double mean_bound(const std::vector<ExperimentRun>& runs) {
  double bound = 0;
  for (const auto& run : runs) bound += run.least_mean_jct / static_cast<double>(runs.size());
  return bound;
}

nlohmann::ordered_json to_json(const std::vector<ExperimentRun>& runs,
                               const ExperimentOptions& options, const sched::Cluster& cluster) {
  nlohmann::ordered_json out;
  out["cluster"] = sched::to_json(cluster);
  for (const std::string& policy : options.policies) {
    auto entry = to_json(average_of(runs, policy));
    entry["policy"] = policy;
    if (options.bound) entry["least_mean_jct"] = mean_bound(runs);
    out["policies"].push_back(std::move(entry));
  }
  for (const auto& run : runs) {
    auto entry = to_json(run.summary);
    entry["policy"] = run.result.policy;
    entry["workload"] = run.result.workload;
    entry["seed"] = run.seed;
    if (options.sim.control) {
      const ControlStats& c = run.result.control;
      entry["control"] = {{"changes", c.changes}, {"generations", c.generations},
                          {"steps", c.steps},     {"messages", c.messages},
                          {"lost", c.lost},       {"late", c.late},
                          {"seconds", c.seconds}, {"slowest", c.slowest}};
    }
    if (options.bound) entry["least_mean_jct"] = run.least_mean_jct;
    out["runs"].push_back(std::move(entry));
  }
  return out;
}

}  // namespace ductile::sim
