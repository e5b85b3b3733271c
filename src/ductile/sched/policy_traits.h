#pragma once

#include "ductile/sched/job.h"

namespace ductile::sched {

// What a policy asks of whoever drives it. The simulator, or a controller, obeys all of it, and a
// policy that wraps another one returns the other's traits whole.
struct PolicyTraits {
  // How much of a job's elasticity the policy uses: with `rigid`, jobs run with the requested
  // devices and batch; with `strong`, with the requested batch.
  Scaling uses = Scaling::adaptive;
  // Whether workers correct the fitted step times by measured ones, and try the batch that then
  // looks best until it has been measured, and whether jobs of one application share their
  // measurements (step_model.h; TypeModel::steps). If false, each job has the agent published with
  // Pollux.
  bool measures = false;
  // Whether the policy also decides when a job arrives or ends, and not only once per interval.
  bool on_events = false;
  // Whether it sees services with their load (JobView::service) and scales them. For other policies
  // each service is a rigid job that asks for its floor and may not be preempted.
  bool serves = false;
  // Whether it leaves the jobs that may not be preempted as they are. make_policy() hides them from
  // the others.
  bool keeps_fixed = false;
  // Whether it knows regions, and keeps jobs that may not move (JobView::movable) in theirs.
  bool sees_regions = false;
  // Whether it knows that a job may not run on some device types.
  bool sees_types = true;
  // Whether it gives pipelines any number of replicas (TypeModel::unit). For other policies
  // a pipeline is a rigid job of one device type.
  bool scales_pipelines = false;
  // Whether it knows that a job may run by several plans (JobView::plans). For other policies such
  // a job is a rigid one that runs by the best plan for the devices that it asks for.
  bool sees_plans = false;
  // Whether it knows the shares of teams (Team::share).
  bool sees_shares = false;
  // The gain at which the published code of this policy ends its fits of step times (fit_perf());
  // 0: at the optimum.
  double fit_least_gain = 0;

  bool operator==(const PolicyTraits&) const = default;
};

}  // namespace ductile::sched
