#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/sim/simulator.h"

// Figures of finished simulations.
namespace ductile::sim {

// How the promise of a tier was kept: the windows (sched/sla.h) of its jobs, including services.
struct TierSummary {
  int64_t windows = 0, kept = 0;  // kept: at or above the guarantee
  double fraction = 0;            // of the requested devices, mean over windows
  double worst = 1;
  int64_t finished = 0;  // of its jobs, without services
  double mean = 0;       // completion time of these, s
};

struct TeamSummary {
  int32_t team = 0;
  int64_t jobs = 0;
  double device_hours = 0;
  double mean = 0;              // completion time of its finished jobs, s; without services
  double over_quota_hours = 0;  // device hours above its quota
};

struct Summary {
  // Only device hours, windows of tiers, teams and `busy` include services; all other figures leave
  // them out. Completion times and fairness are those of the jobs that finished.
  int64_t jobs = 0, unfinished = 0;               // unfinished: when Scenario::until came
  double mean = 0, median = 0, p90 = 0, p99 = 0;  // job completion times, s
  double makespan = 0;                            // last end, s
  double device_hours = 0;
  double restarts = 0;     // per job
  double utilisation = 0;  // share of the usable devices that were held while work was unfinished
  // Finish-time fairness rho: the completion time, relative to that of the job alone on an equal
  // share of the cluster (Mahajan et al., Themis, NSDI'20); above 1, the job would have been faster
  // alone.
  double worst_fairness = 0, mean_fairness = 0, unfair_share = 0;  // share of jobs above 1
  double busy = 0;            // share of the usable devices that were held while a job waited
  double starts = 0;          // starts and later changes of allocation, in all
  double hits = 0;            // times that a job lost a node that it held
  double redone_hours = 0;    // device hours of work lost with nodes and done again
  double lost_hours = 0;      // of work that was done again since a checkpoint; jobs x hours
  std::optional<double> sla;  // share of the windows of Premium and Standard jobs that were kept
  std::array<TierSummary, 3> tiers;
  std::vector<TeamSummary> teams;  // in order of their numbers, if there are several
  int64_t services = 0;
  double attained = 1;    // share of the services' requests that were answered on time
  double worst_hour = 1;  // the same in the worst hour of any service
  double latency = 0;     // mean seconds to the answer, while the service kept up
  double overload = 0;    // share of the time in which a service did not keep up
  double decision_mean = 0, decision_p99 = 0;  // CPU seconds of the policy per round
};

// The least time of a job alone on an equal share of the cluster, if `contention` unfinished jobs,
// including this one, share the cluster. On a mixed cluster it has that share of each type. A job
// whose batch is not free keeps to the one that it asks for.
double alone_seconds(const Submission& job, const Application& app, const ReplayRules& rules,
                     const sched::Cluster& cluster, double contention);

Summary summarise(const SimResult& result, const Workload& workload, const Catalog& catalog,
                  const sched::Cluster& cluster);
// Of several runs of one policy: the means of all figures, except for the worst worst_fairness.
Summary average(std::span<const Summary> summaries);

nlohmann::ordered_json to_json(const Summary& summary);
// The jobs and rounds of a run, without decision times, so the same seed gives the same result.
nlohmann::ordered_json to_json(const SimResult& result);

// Interpolated linearly between the two nearest values; 0 if there are none. 0 <= share <= 1.
double quantile(std::vector<double> values, double share);

}  // namespace ductile::sim
