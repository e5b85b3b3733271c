#pragma once

#include <memory>

#include "ductile/sched/policy.h"

namespace ductile::sched {

struct DuctileOptions {
  // Whether to use the work that jobs declare (JobView::remaining). If off, nothing about the
  // future is known.
  bool budgets = true;
  // Whether jobs of one application share what was learned of its speed and of its usual length.
  bool share_by_application = true;
  // The longest time, in seconds, over which a change of allocation is expected to pay off.
  double horizon = 600;
  // A job gets at most this many times the largest number of devices on which its application (or,
  // if nothing is shared, the job itself) has been measured; for Pollux and Sia it is 2.
  double growth = 8;
  // Finish-time fairness from which a job is favoured: its predicted completion time over what it
  // would have had on its own fair share of the cluster. In a cluster that is too small for all its
  // jobs, 1.5 times that of the median job.
  double fairness = 1.2;
  // The seconds of one job's waiting that one device second is worth: devices that shorten the wait
  // of jobs by less stay idle. 0: devices cost nothing; with 0.01 the policy uses no more of them
  // than Sia does at the published load.
  double device_cost = 0.005;
  // The target for the distance from the optimum of the round's own objective.
  double target_gap = 1e-3;
};

// Ductile's own policy. Each round maximises  sum_j w_j rate_j(configuration)  over configurations
// within capacity, where w_j is what a unit of the job's progress is worth in completion time of
// all (shadow_cost.h), rates are modelled goodput (goodput.h), and a configuration other than the
// present one counts h/(h+s) of its rate, s being the restart and h the time it can pay off in.
// What is left of a job is what it declares, else a distribution learned from jobs that ended
// (work_left.h). The programme is solved by allocator.h, which proves its distance from the
// optimum (Decisions::bound), and placed by pools.h. Inference services are served before that
// (services.h), what a tier's window still needs goes before all other value (sla.h), and teams
// keep to their quotas and shares (cluster.h). It decides whenever a job comes or goes, too. Design
// and proofs: docs/design.
class DuctilePolicy final : public Policy {
 public:
  explicit DuctilePolicy(const DuctileOptions& options = {});
  ~DuctilePolicy() override;

  std::string_view name() const override { return "ductile"; }
  PolicyTraits traits() const override {
    return {.measures = true,
            .on_events = true,
            .serves = true,
            .keeps_fixed = true,
            .scales_pipelines = true,
            .sees_plans = true,
            .sees_shares = true};
  }
  Decisions decide(const Round& round) override;
  std::string explain(JobId job) const override;
  void forget(JobId job) override;
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state, const std::string& where) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::sched
