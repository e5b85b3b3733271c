#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/table.h"
#include "ductile/sched/cluster.h"
#include "ductile/sched/job.h"
#include "ductile/sched/policy_traits.h"

namespace ductile::sched {

// What a policy is told. The spans live only during the call. Jobs are in order of their ids, which
// rise with submission.
struct Round {
  double now = 0;
  double interval = 60;  // seconds to the next round
  const Cluster& cluster;
  std::span<const JobView> jobs;  // all that have arrived and are not finished
};

// A job's new allocation, and the reason in one sentence for people.
struct Decision {
  JobId job = 0;
  Allocation allocation;
  std::string reason;
};

// Jobs without a decision keep what they have. A job has at most one decision. All decisions are
// applied together: another job may take in the same round what one job gives up.
struct Decisions {
  std::vector<Decision> changes;
  // The policy's own objective, and a bound that no allocation can exceed, if it computes them.
  double objective = 0, bound = 0;
};

// Decides which job gets which devices, once per round. Implementations may remember earlier rounds
// (queues, prices), but take time and randomness only from the round and their seed: the same
// rounds give the same decisions, to the byte. One thread at a time may use a policy. It never
// exceeds what the cluster can use now, and gives each job devices of one type.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  virtual PolicyTraits traits() const { return {}; }
  virtual Decisions decide(const Round& round) = 0;
  // Why, after the last decide(), the job waits or holds its devices, and what would change that.
  // Empty for an unknown job.
  virtual std::string explain(JobId job) const = 0;

  // The job will not be there in the next round although it has not ended: it is paused, or goes
  // elsewhere. Of others that are gone a policy may learn how long jobs are.
  virtual void forget(JobId) {}

  // All that the policy remembers of earlier rounds, as JSON; explain() has nothing to say after
  // restore() until the next decide(). A policy of the same name and options that is restored from
  // it decides as this one would, to the byte. restore() throws data_loss, beginning with `where`,
  // for a damaged state; then the policy is unchanged. A policy without memory needs neither.
  virtual nlohmann::json state() const;
  virtual void restore(const nlohmann::json& state, const std::string& where);
};

struct PolicyOptions {
  uint64_t seed = 0;
  // Seconds between rounds; published policies have their own interval (60 s, Gavel 360 s).
  double interval = 60;
  // These apply only to `ductile` (DuctileOptions).
  std::optional<double> device_cost;
  bool share_by_application = true;
};

// The table of policies is in policy.cc; a line there registers a policy.
struct PolicyEntry {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const PolicyOptions&);
  std::string_view help;
  double interval;  // seconds between rounds, as published
};
Table<PolicyEntry> policies();

// The policy of that name. Throws invalid_argument for an unknown name, with the nearest one.
std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options = {});
std::vector<std::string> policy_names();
// Seconds between the rounds of the policy as published: 360 for Gavel, otherwise 60.
double usual_interval(std::string_view policy);

// Throws internal if decisions break a rule: a job is unknown, an allocation has a node twice, more
// than a node has, two types or more than max_devices, a job that must not be preempted is changed,
// or a service is below its floor.
void check_decisions(const Round& round, const Decisions& decisions);

}  // namespace ductile::sched
