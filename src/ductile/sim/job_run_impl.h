#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/sched/job_agent.h"
#include "ductile/sim/application.h"
#include "ductile/sim/workload.h"

// One job of a simulation: what it truly does with what it is given. What it learns of itself is
// kept by the same agent that a live job has. Follows the published simulators step by step, their
// rounding of epochs to whole seconds included.
namespace ductile::sim {

// What slows a job down now.
struct Conditions {
  double compute = 1;       // times as long: the slowest of its nodes
  double network = 1;       // synchronisation over several nodes
  double steps = 1;         // whole steps, in which others on its nodes are in the way
  double interference = 0;  // share of progress lost
};

// How well jobs measure themselves: SimOptions::noise, drawn from the seed and the job.
struct Instruments {
  double noise = 0;
  uint64_t seed = 0, job = 0;
};

class JobRun {
 public:
  // `types`: names of the cluster's device types. `shared`: what the jobs of an application measure
  // together if the traits say so. `instruments`: of all jobs.
  JobRun(const Submission& submission, const Application& app, const ReplayRules& rules,
         std::span<const std::string> types, const sched::PolicyTraits& traits,
         sched::FitCache& fits, sched::SharedMeasurements& shared,
         const Instruments& instruments = {});

  // Takes the true step times on one node's 1, 2, 4 ... devices and on whole nodes of the cluster,
  // at twelve local batches each, and the first noise scale, as if it had run there. Not for
  // services, pipelines and jobs with plans, and without effect if it does not measure.
  void measure_all(const sched::Cluster& cluster);

  // Lets `seconds` pass from `now`; returns the end of the job where it lies within (of a service
  // its life's end, whether it holds anything or not).
  std::optional<double> advance(double now, double seconds, const Conditions& conditions);

  // A new allocation, at `now`: a restart, and `transfer` seconds more, unless empty. Empty: stops.
  void reallocate(double now, const sched::Allocation& allocation, int32_t type,
                  double transfer = 0);
  // As reallocate() with the same shape where moves are free: no restart.
  void move(const sched::Allocation& allocation) { allocation_ = allocation; }
  // Takes back up to `seconds` of progress at the present rate (work since the last checkpoint),
  // and returns how many.
  double lose_work(double seconds);

  // Writes what the scheduler may know; id, name and other constants once with describe().
  void describe(sched::JobView& view) const;
  void report(sched::JobView& view);
  // A service's load, now and until `ahead` seconds from now.
  void report_load(sched::JobView& view, double now, double ahead) const;
  const ServiceRun* service_run() const { return service_run_ ? &*service_run_ : nullptr; }

  const sched::Allocation& allocation() const { return allocation_; }
  std::span<const int32_t> counts() const { return counts_; }
  int32_t type() const { return type_; }
  bool running() const { return !counts_.empty(); }
  double progress() const { return progress_; }
  double total_progress() const { return total_; }
  int32_t epoch() const { return epoch_; }
  double rate() const { return rate_; }  // progress a second when last stepped
  double service() const { return service_; }
  double paused() const { return paused_; }
  int32_t restarts() const { return std::max(starts_ - 1, 0); }
  double first_start() const { return first_start_; }
  double pause() const { return pause_of(app_, rules_); }
  double lost() const { return lost_; }  // seconds of work done again

 private:
  sched::AgentFacts facts(std::span<const std::string> types,
                          const sched::PolicyTraits& traits) const;
  void check_plans(const sched::AgentFacts& facts, const sched::PolicyTraits& traits) const;
  void choose_batch();
  void go_back();
  bool pipeline() const { return app_.micro_batches > 0; }
  bool planned() const { return !app_.plans.empty(); }
  bool observe(StepTime time);  // whether it was new
  void observe_noise(const sched::GradientNoise& noise, double batch);
  double misread(uint64_t purpose, uint64_t reading) const;  // a factor

  const Submission& submission_;
  const Application& app_;
  const ReplayRules& rules_;
  bool serves_, measures_;                // PolicyTraits
  std::vector<const Profile*> profiles_;  // by type
  std::vector<std::string> types_;        // their names
  std::vector<int32_t> units_;            // devices of a replica by type; 0: none runs there
  sched::JobAgent agent_;                 // what the job has learned of all this
  std::vector<double> epoch_ends_;        // progress at the end of each epoch
  double total_ = 0;

  sched::Allocation allocation_;
  std::vector<int32_t> counts_;
  int32_t devices_ = 0, replicas_ = 0;
  int32_t type_ = -1;
  int32_t local_ = 0, accumulation_ = 0;
  int32_t plan_ = -1;  // of the agent's
  double pause_left_ = 0;
  double progress_ = 0, rate_ = 0;
  int32_t epoch_ = 0;
  double service_ = 0, paused_ = 0;
  int32_t starts_ = 0;
  double first_start_ = -1, last_change_ = -1;
  bool finished_ = false;
  double since_save_ = 0, saved_progress_ = 0, lost_ = 0;  // with checkpoint_every
  Instruments instruments_;
  uint64_t readings_ = 0;
  int32_t noise_epoch_ = -1;  // and batch, of the last reading
  double noise_batch_ = 0;
  std::optional<ServiceRun> service_run_;
};

}  // namespace ductile::sim
