#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/sched/cluster.h"
#include "ductile/sched/goodput.h"
#include "ductile/sched/sla.h"
#include "ductile/sched/step_model.h"

namespace ductile::sched {

using JobId = int64_t;

// What a job lets the scheduler change.
enum class Scaling : uint8_t {
  rigid,     // devices and batch as asked for
  strong,    // devices may change, the batch is as asked for
  adaptive,  // both may change
};

std::string_view to_string(Scaling scaling);

// What is known of the job on one device type.
struct TypeModel {
  bool allowed = true;  // may run there at all
  bool fitted = false;  // perf comes from runs on several devices of this type (or on one)
  PerfParams perf;      // where fitted
  // More exact than perf if the workers measure (PolicyTraits::measures); may be null.
  std::shared_ptr<const StepModel> steps;
  int32_t max_profiled = 0;  // devices of the largest run seen there
  int32_t max_useful = 0;    // more devices than this are never given; 0: none known
  int32_t unit = 1;          // devices of one replica (a pipeline's stages); sizes are multiples
  int32_t unit_batch = 0;    // samples per replica and step, if fixed (pipelines)
  BatchLimits limits;
  double unit_rate = 0;       // samples/s of one unit at its largest batch: the start-up profile
  double requested_rate = 0;  // samples/s on the devices and batch asked for; 0: not known
};

// One way to run a job on exactly so many devices, known before it runs: a plan of `ductile plan`.
struct JobPlan {
  int32_t type = 0;  // of the cluster
  int32_t devices = 1;
  int32_t batch = 1;              // whole batch
  double samples_per_second = 0;  // above 0
};

// An inference service: replicas with TypeModel::unit devices each, which share one stream of
// requests.
struct ServiceView {
  double load = 0;           // requests per second now
  double peak = 0;           // the most expected until the round after next
  double target = 1;         // seconds within which requests are to be answered ...
  double goal = 0.99;        // ... this share of them
  int32_t floor = 1;         // replicas that are never taken from it
  std::vector<double> rate;  // by type: requests per second per replica; 0: none there
  bool spread = false;  // not all on one node, which may be lost, where others have free devices
};

// One unfinished job as a policy sees it. Times are seconds of the clock of Round::now.
struct JobView {
  JobId id = 0;  // stable over rounds, never used again
  std::string name;
  std::string application;  // jobs of one application behave alike; may be empty
  double arrival = 0;
  Scaling scaling = Scaling::adaptive;
  bool preemptible = true;  // false: once started it keeps what it has
  bool saves = true;        // false: if it is stopped, all that it has done is lost
  Tier tier = Tier::basic;
  int32_t team = 0;

  int32_t requested_devices = 1;
  int32_t requested_batch = 0;  // whole batch; 0: none was asked for
  int32_t min_devices = 1;      // below this it does not run
  int32_t max_devices = 1;      // over all types; TypeModel::max_useful may say less
  int32_t quota = 0;  // of its team, where max_devices is what that leaves it; 0: it is not

  double restart_seconds = 30;  // pause at each start, and at each change of allocation ...
  std::optional<double> resize_seconds;  // ... unless a job that runs is changed faster than that
  double change_seconds() const {
    return resize_seconds ? std::min(*resize_seconds, restart_seconds) : restart_seconds;
  }
  double unsaved_seconds = 0;  // of work that a change now would lose: since its last checkpoint

  // The progress still to make, in steps of batch M0, if the job declared a budget; 0 or less: the
  // budget is spent, although the job goes on.
  std::optional<double> remaining;
  // The same in steps of the batch asked for.
  std::optional<double> remaining_steps;
  // The seconds per step, at the batch asked for, on 1, 2, ... devices, packed; empty: not known.
  // The data are not owned, and live as long as the round.
  std::span<const double> known_step_seconds;

  // Set for a service, if the policy serves them. Batch, budget and models then do not apply.
  std::optional<ServiceView> service;
  // The present window of its service level; if nothing is asked, no account is kept.
  SlaWindow window;

  double attained_service = 0;  // device-seconds held so far
  double progress = 0;          // steps of batch M0 made so far
  int32_t restarts = 0;         // after the first start
  double pause_left = 0;        // seconds of a restart still to go
  double started = -1;          // first start; -1: never
  double last_change = -1;      // last start or change of allocation; -1: never
  Allocation allocation;        // now
  // Regions (Cluster::regions). A start elsewhere than where its data are pays `transfer_seconds`
  // besides the restart, and the data are then there.
  int32_t region = -1;  // of its data; -1: they are everywhere
  double transfer_seconds = 0;
  bool movable = true;  // false: it runs in the region of its data alone
  // The allocation was granted and is on its way: the job does not hold all of it yet. Until it
  // does, no policy changes it, so that a slow start is neither granted twice nor taken back. Not
  // for services, whose replicas come one by one.
  bool granted = false;
  // Whether it keeps what it has whatever a policy would like.
  bool is_fixed() const { return !service && (!preemptible || granted) && !allocation.empty(); }

  // If there are any, the job runs by one of these alone: the best one for the devices that it
  // gets.
  std::vector<JobPlan> plans;

  std::optional<GradientNoise> noise;  // none before the first step
  std::vector<TypeModel> types;        // by type id of the cluster
  uint32_t model_version = 0;          // rises whenever noise or types change
  uint32_t speeds_version = 0;         // rises whenever types change; 0: that is not told
};

}  // namespace ductile::sched
