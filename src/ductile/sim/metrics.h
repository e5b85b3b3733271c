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

// How a tier's promise was kept: windows (sched/sla.h) of its jobs, services included.
struct TierSummary {
  int64_t windows = 0, kept = 0;  // kept: at or above the guarantee
  double fraction = 0;            // of the devices asked for, mean over windows
  double worst = 1;
};

struct TeamSummary {
  int32_t team = 0;
  int64_t jobs = 0;
  double device_hours = 0;
  double mean = 0;              // completion time of its jobs, s; services left out
  double over_quota_hours = 0;  // device hours above its quota
};

struct Summary {
  int64_t jobs =
      0;  // services left out, here and in all that follows but device hours, tiers, teams
  double mean = 0, median = 0, p90 = 0, p99 = 0;  // job completion times, s
  double makespan = 0;                            // last end, s
  double device_hours = 0;
  double restarts = 0;     // a job
  double utilisation = 0;  // devices held of those usable while work was unfinished
  // Finish-time fairness rho: completion time against that of the job alone on its equal share
  // of the cluster (Mahajan et al., Themis, NSDI'20); above 1 it would have done better there.
  double worst_fairness = 0, mean_fairness = 0, unfair_share = 0;  // share of jobs above 1
  double lost_hours = 0;      // of work done again, with checkpoints now and then; jobs x hours
  std::optional<double> sla;  // share of the windows of Premium and Standard jobs that were kept
  std::array<TierSummary, 3> tiers;
  std::vector<TeamSummary> teams;  // where there are several, by number
  int64_t services = 0;
  double attained = 1;    // of the services' requests: answered on time
  double worst_hour = 1;  // the same in the worst hour of any service
  double latency = 0;     // mean seconds to the answer, while they kept up
  double overload = 0;    // share of their time in which some service did not keep up
  double decision_mean = 0, decision_p99 = 0;  // CPU seconds of the policy a round
};

// The fastest a job can run alone on an equal share of the cluster: `contention` unfinished jobs
// share it, one of them the job. On a mixed cluster the share is of each type, in proportion.
double alone_seconds(const Submission& job, const Application& app, const ReplayRules& rules,
                     const sched::Cluster& cluster, double contention);

Summary summarise(const SimResult& result, const Workload& workload, const Catalog& catalog,
                  const sched::Cluster& cluster);
// Of several runs of one policy: means; the worst of worst_fairness, the mean of makespans.
Summary average(std::span<const Summary> summaries);

nlohmann::ordered_json to_json(const Summary& summary);
// Jobs and rounds of a run; without the decision times, so the same for the same seed.
nlohmann::ordered_json to_json(const SimResult& result);

// Between the two nearest values, linearly; 0 for none. share from 0 to 1.
double quantile(std::vector<double> values, double share);

}  // namespace ductile::sim
