#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/sched/goodput.h"
#include "ductile/sim/profile.h"

namespace ductile::sim {

// How training went at one whole batch size; element i is epoch i.
struct BatchTrace {
  int32_t batch = 1;
  std::vector<double> progress;             // at the end of the epoch, in steps of batch M0
  std::vector<double> iteration;            // at the end of the epoch, in steps of this batch
  std::vector<sched::GradientNoise> noise;  // during the epoch
};

// One way to run a job on exactly so many devices of a type: a plan of `ductile plan`.
struct PlanProfile {
  std::string name;  // of its kind: pipeline, data, sharded ...
  std::string type;
  int32_t devices = 1;
  int32_t batch = 1;   // whole batch
  double seconds = 1;  // a step
};

// How jobs of this kind really behave: step times on each device type, and statistics by epoch. It
// is created once and then read by all jobs; one thread at a time may use it.
struct Application {
  std::string name;
  int32_t init_batch = 1;  // M0
  int32_t max_batch = 1;
  int32_t epochs = 1;
  int32_t most_local = 0;          // a limit below that of the profiles; 0: none
  int32_t most_devices = 0;        // 0: as many as the batch allows
  int32_t adaptive_batch = 0;      // under adaptive policies, replaces the requested batch; 0: none
  bool fixed_batch = false;        // keeps that batch even under adaptive policies
  double pause = 30;               // seconds of a restart
  double slowdown = 1;             // of steps on real machines, relative to the profiles
  std::vector<BatchTrace> traces;  // in rising order of batch
  std::map<std::string, Profile> profiles;  // by device type
  // For pipelines: the devices of one pipeline by device type, and its number of micro-batches of
  // one sample per step. A profile then has the forward time of one stage and micro-batch; a
  // pipeline cannot use types without an entry.
  std::map<std::string, int32_t> stages;
  int32_t micro_batches = 0;
  // If there are any, a job runs by one of these alone, and there are no profiles.
  std::vector<PlanProfile> plans;

  // Progress at the end of `epochs_done` epochs: the least over the traces; 0 for no epochs.
  double progress_at(int32_t epochs_done) const;
  double total_progress() const { return progress_at(epochs); }
  // Interpolated linearly between the two nearest traces; a batch beyond them has that of the last.
  sched::GradientNoise noise(int32_t batch, int32_t epoch) const;
  // Steps at this batch until the end of epoch `epoch`.
  double iteration(int32_t batch, int32_t epoch) const;

  // The profile of a type. Throws not_found for a type without a profile, and names the types that
  // have one. A pipeline has its first profile there; unit() keeps it off such types.
  const Profile& profile(const std::string& type) const;
  sched::BatchLimits limits(const Profile& profile) const;
  // Devices of one replica: 1, or the stages of a pipeline; 0: it cannot run on the type. With
  // plans, 1 where there is one.
  int32_t unit(const std::string& type) const;
  // One step of a replica on these nodes, with `local` samples, or the micro-batches of a pipeline.
  // The forward and backward passes of a pipeline take 3 (stages - 1 + micro-batches) forward times
  // and hide the synchronisation, as published.
  StepTime step_time(const std::string& type, std::span<const int32_t> counts, int32_t local) const;
};

// The rules of the published simulators that apply.
struct ReplayRules {
  // Whether the largest local batch is that of the placement, or that of the application.
  bool limit_by_placement = false;
  // Whether a move to other nodes in the same shape (devices per node, in order) costs nothing.
  bool free_moves = false;
  // Whether each application has its own pause, and its steps take `slowdown` times as long.
  bool own_pause = false;
  std::optional<double> restart;  // seconds that replace any pause above
  // Seconds of a change of what a job holds while it runs; none: as of a start.
  std::optional<double> resize;
  // Whether the speed of a job is known before its first step.
  bool start_known = true;
  // Whether a job's epochs end at whole seconds after they began, which moves jobs of seconds.
  bool whole_seconds = true;
};

// Seconds that a start or change of allocation costs.
inline double pause_of(const Application& app, const ReplayRules& rules) {
  return rules.restart ? *rules.restart : rules.own_pause ? app.pause : 30;
}

struct Catalog {
  std::map<std::string, Application> applications;
  ReplayRules rules;

  // Throws not_found, naming the known ones.
  const Application& find(const std::string& name) const;
};

// Reads a folder of traces with one sub-folder per application: validation-B.csv,
// placements[-TYPE].csv, scalability[-TYPE].csv, and for a pipeline also pipeline.csv (type,
// stages, micro_batches), or plans.csv (plan, type, devices, batch, seconds: a step) in place of
// profiles. Profiles without a type are for "t4". A folder with typed profiles
// follows the replay rules of Sia, any other those of Pollux. Throws the errors of Csv, or
// not_found.
Catalog read_catalog(const fs::path& folder);

// The nearest folder `traces` with application folders, at or above that of the workload file.
std::optional<fs::path> traces_beside(const fs::path& workload);

// Six synthetic applications with the names of the published ones, for simulations without trace
// files: formulas for any device type (speed 1 for t4 and aws, 1.6 for rtx, 4 for a100 and
// dgx-ext).
Catalog built_in_catalog();

}  // namespace ductile::sim
