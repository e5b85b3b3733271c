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

// What a job of this kind truly does: step times on each device type, and statistics by epoch. Made
// once, then read by all jobs; one thread at a time.
struct Application {
  std::string name;
  int32_t init_batch = 1;  // M0
  int32_t max_batch = 1;
  int32_t epochs = 1;
  int32_t most_local = 0;          // a limit below that of the profiles; 0: none
  int32_t most_devices = 0;        // 0: as many as the batch allows
  int32_t adaptive_batch = 0;      // replaces the batch asked for under adaptive policies; 0: none
  bool fixed_batch = false;        // keeps that batch even under adaptive policies
  double pause = 30;               // seconds of a restart
  double slowdown = 1;             // of steps, on real machines against the profiles
  std::vector<BatchTrace> traces;  // in rising order of batch
  std::map<std::string, Profile> profiles;  // by device type
  // Pipelines: devices of one by device type, and its micro-batches of one sample a step. A profile
  // then has the forward time of one stage and micro-batch; types without one are out of reach.
  std::map<std::string, int32_t> stages;
  int32_t micro_batches = 0;

  // Progress at the end of `epochs` epochs: the least over the traces; 0 for none.
  double progress_at(int32_t epochs_done) const;
  double total_progress() const { return progress_at(epochs); }
  // Between the two nearest traces, linearly; a batch beyond them has the last one's.
  sched::GradientNoise noise(int32_t batch, int32_t epoch) const;
  // Steps at this batch until the end of epoch `epoch`.
  double iteration(int32_t batch, int32_t epoch) const;

  // The profile of a type. Throws not_found for a type without one, naming those that have; a
  // pipeline, which unit() keeps off such types, has its first profile there.
  const Profile& profile(const std::string& type) const;
  sched::BatchLimits limits(const Profile& profile) const;
  // Devices of one replica: 1, of a pipeline its stages; 0: it cannot run on the type.
  int32_t unit(const std::string& type) const;
  // One step of a replica on these nodes: `local` samples, of a pipeline its micro-batches. Forward
  // and backward of a pipeline take 3 (stages - 1 + micro-batches) forward times; synchronisation
  // is hidden behind them, as published.
  StepTime step_time(const std::string& type, std::span<const int32_t> counts, int32_t local) const;
};

// Which of the published simulators' habits apply.
struct ReplayRules {
  // Largest local batch: of the application (false) or of the placement (true).
  bool limit_by_placement = false;
  // A move to other nodes in the same shape (devices a node, in order) costs nothing.
  bool free_moves = false;
  // Each application has a pause of its own, and its steps take slowdown times as long.
  bool own_pause = false;
  std::optional<double> restart;  // seconds, in place of any pause above
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

// A folder of traces, one sub-folder an application: validation-B.csv, placements[-TYPE].csv,
// scalability[-TYPE].csv; of a pipeline also pipeline.csv (type, stages, micro_batches). Profiles
// without a type are of "t4". A folder with typed profiles follows Sia's replay rules, any other
// Pollux's. Throws as Csv, or not_found.
Catalog read_catalog(const fs::path& folder);

// Six made-up applications under the names of the published ones, for simulations without trace
// files: formulas for any device type (t4 and aws 1; rtx 1.6, a100 and dgx-ext 4 times as fast).
Catalog built_in_catalog();

}  // namespace ductile::sim
