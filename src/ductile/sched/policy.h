#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/table.h"
#include "ductile/sched/cluster.h"
#include "ductile/sched/job.h"

namespace ductile::sched {

// What a policy is told. The spans live for the call only. Jobs come in order of id, which rises
// with submission.
struct Round {
  double now = 0;
  double interval = 60;  // seconds to the next round
  const Cluster& cluster;
  std::span<const JobView> jobs;  // all that have arrived and are not finished
};

// A job's new allocation, and why in one sentence for a person.
struct Decision {
  JobId job = 0;
  Allocation allocation;
  std::string reason;
};

// Jobs without a decision keep what they have. At most one decision a job. Applied together: what
// one job gives up another may take in the same round.
struct Decisions {
  std::vector<Decision> changes;
  // The policy's own objective and a bound no allocation can exceed, where it computes them.
  double objective = 0, bound = 0;
};

// Decides who gets what, once per round. Implementations may remember earlier rounds (queues,
// prices) but take time and randomness only from the round and their seed: the same rounds give the
// same decisions, to the byte. One thread at a time. Never exceeds what the cluster can use now,
// and gives each job devices of one type.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  // The most of a job's elasticity that this policy uses: under `rigid` jobs run at the devices and
  // batch asked for, under `strong` at the batch asked for. Whoever drives the jobs goes by it.
  virtual Scaling uses() const { return Scaling::adaptive; }
  // Whether workers correct the fitted step times by those they measure, trying the batch that then
  // looks best until it has been measured, jobs of one application sharing what they measured
  // (step_model.h; TypeModel::steps). False: the agent published with Pollux, each job for itself.
  virtual bool measures() const { return false; }
  // Whether to decide also when a job arrives or ends, and not only once an interval.
  virtual bool on_events() const { return false; }
  // Whether services come to it with their load (JobView::service), to be scaled. To others each is
  // a rigid job that asks for its floor and may not be preempted.
  virtual bool serves() const { return false; }
  // Whether it knows that a job may not run on some device types.
  virtual bool sees_types() const { return true; }
  // Whether it gives pipelines any number of replicas (TypeModel::unit). Under others one is a
  // rigid job of one device type.
  virtual bool scales_pipelines() const { return false; }
  // How early the published code of this policy ends its fits of step times (fit_perf()); 0: at the
  // optimum.
  virtual double fit_least_gain() const { return 0; }
  virtual Decisions decide(const Round& round) = 0;
  // Why the job waits or holds what it holds, after the last decide(), and what would change that.
  // Empty for an unknown job.
  virtual std::string explain(JobId job) const = 0;
};

struct PolicyOptions {
  uint64_t seed = 0;
  // Rounds are this far apart; published policies have their own habit (60 s, Gavel 360 s).
  double interval = 60;
  // Of `ductile` only (DuctileOptions).
  std::optional<double> device_cost;
  bool share_by_application = true;
};

// The table of policies, in policy.cc: a line there registers one.
struct PolicyEntry {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const PolicyOptions&);
  std::string_view help;
  double interval;  // seconds between rounds, as published
};
Table<PolicyEntry> policies();

// The policy of that name. Throws invalid_argument for another name, with the nearest.
std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options = {});
std::vector<std::string> policy_names();
// Seconds between the rounds of the policy as published: 360 for Gavel, else 60.
double usual_interval(std::string_view policy);

// Throws internal where decisions break a rule: unknown job, node twice, more than a node has, two
// types, more than max_devices, a change of what must not be preempted, a service below its floor.
void check_decisions(const Round& round, const Decisions& decisions);

}  // namespace ductile::sched
