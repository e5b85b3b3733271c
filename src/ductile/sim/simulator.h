#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ductile/sched/cluster.h"
#include "ductile/sched/policy.h"
#include "ductile/sim/application.h"
#include "ductile/sim/controlled_job.h"
#include "ductile/sim/scenario.h"
#include "ductile/sim/workload.h"

// Runs a workload on a cluster under a policy, in virtual time. Events are rounds, faults and, in
// between, what happens inside each job: restarts, epochs, its end. Everything but the measured
// decision times follows from the arguments, to the bit.
namespace ductile::sim {

// What happens now, for a progress bar.
struct SimProgress {
  double now = 0;
  int64_t finished = 0, jobs = 0;
};

// What policies that adapt jobs are told, beyond what jobs declare.
enum class Information : uint8_t {
  own,        // each policy as it is: Policy::measures(), Policy::on_events()
  published,  // all as Pollux and Sia were published: each job's own fitted model, rounds only
  full,       // all as Ductile's: corrected and shared measurements, events, no batch asked for
};

struct SimOptions {
  double interval = 60;  // seconds between rounds; the first is one interval after the start
  uint64_t seed = 0;
  // Declared budgets: none; 1: exact; f > 1: each wrong by a factor drawn from 1/f to f.
  std::optional<double> budget = 1.0;
  // Slowdown of jobs on several nodes that share a node with another such job, 0 to 1.
  double interference = 0;
  // Standard deviation of the logarithm of every measured step time and noise scale against the
  // true one; the jobs' progress is not touched.
  double noise = 0;
  Information information = Information::own;
  // Every change of a job's devices (services left out) also goes through the real control plane
  // (ControlledJob); faults of messages in the scenario reach it. Does not change the result.
  bool control = false;
  // Checks the invariants each round and throws internal where one breaks.
  bool check = false;
  // Fails with deadline where the workload is not done by then.
  double most_seconds = 1e8;
  Scenario scenario;
  std::function<void(const SimProgress&)> progress;  // called each round
};

struct JobResult {
  std::string name, application;
  sched::Tier tier = sched::Tier::basic;
  int32_t team = 0;
  double arrival = 0, start = 0, finish = 0;  // start: the first
  double service = 0;                         // device-seconds held
  double paused = 0;                          // seconds of restarts
  int32_t restarts = 0;
  int32_t node_losses = 0;
  double lost = 0;  // seconds of work done again: since the last checkpoint, with checkpoint_every
  std::vector<sched::SlaWindow> windows;  // of its service level
  std::optional<ServiceRecord> served;    // of a service
  double worst_hour = 1;                  // of a service: the least share answered on time
  double contention = 0;  // unfinished jobs in the mean round of its life, itself among them
  double jct() const { return finish - arrival; }
};

// A job held the same devices from `from` to `to`.
struct Segment {
  int32_t job = 0;  // index into the results
  double from = 0, to = 0;
  sched::Allocation allocation;
};

struct RoundSample {
  double time = 0;
  int32_t active = 0, waiting = 0;  // unfinished; of these without devices
  int64_t used = 0, usable = 0;     // devices
  double goodput = 0;  // jobs an hour: progress a second of each job against its whole length
  double load = 0, on_time = 0;  // of services: requests a second; of these answered on time
  double decision_seconds = 0;   // CPU time of the policy; not deterministic
  double objective = 0, bound = 0;
};

struct SimResult {
  std::string workload, policy;
  std::vector<JobResult> jobs;  // as in the workload
  std::vector<Segment> timeline;
  std::vector<RoundSample> rounds;
  std::vector<FaultEvent> faults;    // that happened
  double end = 0;                    // last finish of a job that is no service
  ControlStats control;              // with SimOptions::control
  double usable_device_seconds = 0;  // until then, where work was unfinished
};

// A job that asks for more devices than the most numerous type has asks for all of those.
SimResult simulate(const Workload& workload, const Catalog& catalog, const sched::Cluster& cluster,
                   sched::Policy& policy, const SimOptions& options = {});

}  // namespace ductile::sim
