#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/sched/job.h"
#include "ductile/sim/application.h"
#include "ductile/sim/service_run.h"

// Jobs to come, from files or made up.
namespace ductile::sim {

struct Submission {
  std::string name;         // unique in its workload
  std::string application;  // of a catalogue
  double time = 0;          // seconds from the start
  int32_t devices = 1;      // asked for
  int32_t batch = 0;        // asked for; 0: the application's smallest
  sched::Scaling scaling = sched::Scaling::adaptive;
  sched::Tier tier = sched::Tier::basic;
  int32_t team = 0;
  bool preemptible = true;
  double work = 1;  // length against the application's own
  // A change or loss takes back the work since the last checkpoint, taken so often in seconds of
  // work; 0: none is lost (it saves when it is told to stop, or loses a step at most).
  double checkpoint_every = 0;
  // An inference service: `devices` is its floor, `work` and `batch` mean nothing.
  std::optional<ServiceSpec> service;
};

struct Workload {
  std::string name;
  std::vector<Submission> jobs;  // in order of time
};

// Reads a workload file:
//  - name,time,application,num_replicas,batch_size: Pollux's and Sia's;
//  - timestamp,duration,num_gpus,gpu_time,cluster: Philly's. The application follows from the
//    GPU time (below 1, 10, 100 hours, above), as Pollux chose its own; `work` is such that the job
//    takes `duration` on the devices asked for, of the catalogue's first type. Each virtual cluster
//    is a team;
//  - the first with any of scaling (rigid, strong, adaptive), tier (premium, standard, basic),
//  team,
//    preemptible (0, 1), work, checkpoint, batch_size left out: our own. A row with `load` is an
//    inference service: load ("3" or "0:3; 43200:9; 86400:3", requests a second by time),
//    replica_rate, latency, replica_devices, seconds as ServiceSpec; num_replicas is its floor.
// Rows come in any order. Throws as Csv; an unknown application names line and column too.
Workload read_workload(const fs::path& file, const Catalog& catalog);
Workload parse_workload(std::string_view text, const std::string& name, const Catalog& catalog);

// Arrivals `load` times as dense: every time is divided by it. load > 0.
void compress(Workload& workload, double load);
// Only the first `count` jobs.
void truncate(Workload& workload, int64_t count);

// Makes each job the only one of its application: a copy of it under a name of its own (bert~7)
// whose gradients, synchronisation and noise scale each differ by a factor with this standard
// deviation of its logarithm, so that nothing learned of one job is true of another.
void make_unique(Workload& workload, Catalog& catalog, uint64_t seed, double spread = 0.2);

// Jobs made up: `jobs` arrivals over `hours` with the daily swing of Pollux's Figure 5 (the fourth
// hour is three times as dense as the first), applications in the proportions of its Table 1
// (small 72, medium 20, large 6, very large 2 of 100), lengths spread log-normally. A pure
// function.
struct SyntheticOptions {
  int64_t jobs = 160;
  double hours = 8;
  uint64_t seed = 0;
  bool tiers = false;  // a tenth Premium, three tenths Standard; else all Basic
  int32_t teams = 1;
  double spread = 0.35;  // of the logarithm of a job's length
  // Inference services that are there all the time, Premium, each with a floor of 2 devices and a
  // load that swings once between what 2 and about 8 devices can answer.
  int64_t services = 0;
};
Workload synthetic_workload(const SyntheticOptions& options, const Catalog& catalog);

// The own format of a workload, readable by read_workload.
std::string to_csv(const Workload& workload);

}  // namespace ductile::sim
