#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/sched/cluster.h"
#include "ductile/sched/policy.h"
#include "ductile/sim/application.h"
#include "ductile/sim/controlled_job.h"
#include "ductile/sim/scenario.h"
#include "ductile/sim/workload.h"

// Runs a workload on a cluster under a policy, in virtual time. Events are rounds, faults, and what
// happens in each job in between: restarts, epochs, its end. The arguments determine everything
// except the measured decision times, to the bit.
namespace ductile::sim {

// The progress of a simulation, for a progress bar.
struct SimProgress {
  double now = 0;
  int64_t finished = 0, jobs = 0;
};

// What policies that adapt jobs are told, in addition to what jobs declare.
enum class Information : uint8_t {
  own,        // what the policy itself uses: PolicyTraits::measures and on_events
  published,  // for all, as published for Pollux and Sia: each job's fitted model, rounds only
  full,       // for all, as for Ductile's: corrected, shared measurements; events; free batch
  profiled,   // as full, and each job was measured before it arrived: JobRun::measure_all()
};

// "own", "published", "full", "profiled"; throws invalid_argument for another name.
Information information_from(std::string_view name);

struct SimOptions {
  double interval = 60;  // seconds between rounds; the first is one interval after the start
  // Whether rounds are those of a service (cluster/service.h): also at once when nothing runs and a
  // job arrives or ends, and one interval after the last one.
  bool as_service = false;
  uint64_t seed = 0;
  // Declared budgets. Empty: there are none; 1: exact; f > 1: each is wrong by a factor drawn from
  // 1/f to f.
  std::optional<double> budget = 1.0;
  // Slowdown, from 0 to 1, of jobs on several nodes that share a node with another such job.
  double interference = 0;
  // How many times as long whole steps take, with their synchronisation, while other jobs hold
  // devices of the same node, at least 1: cores of one machine share its memory, caches and clock.
  double neighbours = 1;
  // Standard deviation of the logarithm of every measured step time and noise scale, relative to
  // the true one. It does not affect the progress of jobs.
  double noise = 0;
  Information information = Information::own;
  // Whether every change of a job's devices (except for services) also goes through the real
  // control plane (ControlledJob), with the message faults of the scenario. This does not change
  // the result.
  bool control = false;
  // Whether to check the invariants in each round, and to throw internal if one is broken.
  bool check = false;
  // Fails with deadline if the workload is not done by then.
  double most_seconds = 1e8;
  Scenario scenario;
  std::function<void(const SimProgress&)> progress;  // called each round
};

struct JobResult {
  std::string name, application;
  sched::Tier tier = sched::Tier::basic;
  int32_t team = 0;
  double arrival = 0, start = 0, finish = 0;  // start: the first one
  double service = 0;                         // device-seconds held
  double paused = 0;                          // seconds of restarts
  int32_t restarts = 0;
  int32_t node_losses = 0;
  bool finished = true;  // false: Scenario::until came first, and is its `finish`
  double redone = 0;     // device-seconds of work lost with nodes (Scenario::lost_work_seconds)
  double lost = 0;  // seconds of work since a checkpoint that were done again (checkpoint_every)
  std::vector<sched::SlaWindow> windows;  // of its service level
  std::optional<ServiceRecord> served;    // of a service
  double worst_hour = 1;                  // of a service: the least share answered on time
  double contention = 0;  // mean number of unfinished jobs during its life, including itself
  double jct() const { return finish - arrival; }
};

// A period from `from` to `to` in which a job held the same devices.
struct Segment {
  int32_t job = 0;  // index into the results
  double from = 0, to = 0;
  sched::Allocation allocation;
};

struct RoundSample {
  double time = 0;
  int32_t active = 0, waiting = 0;  // unfinished jobs; those of them that have no devices
  int64_t used = 0, usable = 0;     // devices
  double goodput = 0;  // jobs per hour: progress of each job, relative to its whole length
  double load = 0, on_time = 0;  // of services: requests per second; those answered on time
  double decision_seconds = 0;   // CPU time of the policy; not deterministic
  double objective = 0, bound = 0;
};

struct SimResult {
  std::string workload, policy;
  std::vector<JobResult> jobs;  // as in the workload
  std::vector<Segment> timeline;
  std::vector<RoundSample> rounds;
  std::vector<FaultEvent> faults;    // those that happened
  double end = 0;                    // the last finish of a job that is not a service, or `until`
  ControlStats control;              // with SimOptions::control
  double usable_device_seconds = 0;  // until `end`, while work was unfinished
};

// A job that asks for more devices than any type has asks for all devices of the largest type
// instead.
SimResult simulate(const Workload& workload, const Catalog& catalog, const sched::Cluster& cluster,
                   sched::Policy& policy, const SimOptions& options = {});

}  // namespace ductile::sim
