#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/sched/job.h"
#include "ductile/sim/application.h"
#include "ductile/sim/service_run.h"

// Workloads of jobs, from files or synthetic.
namespace ductile::sim {

struct Submission {
  std::string name;         // unique in its workload
  std::string application;  // of a catalogue
  double time = 0;          // seconds from the start
  int32_t devices = 1;      // requested
  int32_t batch = 0;        // requested; 0: the smallest one of the application
  sched::Scaling scaling = sched::Scaling::adaptive;
  sched::Tier tier = sched::Tier::basic;
  int32_t team = 0;
  bool preemptible = true;
  double work = 1;  // length, relative to that of the application
  // Seconds of work between checkpoints. A change or loss takes back the work since the last one.
  // With 0 nothing is lost (the job saves when it is told to stop, or loses at most one step).
  double checkpoint_every = 0;
  // Region of its data; empty: they are everywhere. To start elsewhere takes the transfer of its
  // data, in seconds, besides the restart; the data are then there.
  std::string region;
  double transfer = 0;
  bool movable = true;  // false: it runs in that region alone
  // For an inference service; `devices` is then its floor, and `work` and `batch` are not used.
  std::optional<ServiceSpec> service;
};

struct Workload {
  std::string name;
  std::vector<Submission> jobs;  // in order of time
};

// Reads a workload file:
//  - name,time,application,num_replicas,batch_size: the form of Pollux and Sia.
//  - timestamp,duration,num_gpus,gpu_time,cluster: the form of Philly. The GPU time (below 1, 10,
//    100 hours, or above) determines the application, as in Pollux. `work` is such that the job
//    takes `duration` on the requested number of devices of the catalogue's first type. Each
//    virtual cluster is a team.
//  - Our own: the first form, in which batch_size may be absent, with any of scaling (rigid,
//    strong, adaptive), tier (premium, standard, basic), team, preemptible (0, 1), work,
//    checkpoint, region, transfer, movable (0, 1). A row with `load` is an inference service: load
//    ("3" or "0:3; 43200:9; 86400:3", requests per second by time), replica_rate, latency,
//    replica_devices and seconds as in ServiceSpec; num_replicas is its floor.
// Rows may be in any order. Throws the errors of Csv; the error of an unknown application also
// names line and column.
Workload read_workload(const fs::path& file, const Catalog& catalog);
Workload parse_workload(std::string_view text, const std::string& name, const Catalog& catalog);

// Makes arrivals `load` times as dense: every time is divided by `load`, which is > 0.
void compress(Workload& workload, double load);
// Keeps only the first `count` jobs.
void truncate(Workload& workload, int64_t count);

// Makes each job the only one of its application: a copy of it under a name of its own (bert~7)
// whose gradients, synchronisation and noise scale each differ by a factor with this standard
// deviation of its logarithm, so that nothing learned of one job is true of another.
void make_unique(Workload& workload, Catalog& catalog, uint64_t seed, double spread = 0.2);

// Synthetic jobs: `jobs` arrivals over `hours`, with the daily variation of Pollux's Figure 5 (the
// fourth hour is three times as dense as the first), applications in the proportions of its Table 1
// (small 72, medium 20, large 6, very large 2 of 100), and log-normal lengths.
struct SyntheticOptions {
  int64_t jobs = 160;
  double hours = 8;
  uint64_t seed = 0;
  bool tiers = false;  // whether a tenth is Premium and three tenths Standard; otherwise all Basic
  int32_t teams = 1;
  double spread = 0.35;  // of the logarithm of a job's length
  // Number of inference services. They live all the time, are Premium, and each has a floor of 2
  // devices and a load that varies once between what 2 and about 8 devices can answer.
  int64_t services = 0;
};
Workload synthetic_workload(const SyntheticOptions& options, const Catalog& catalog);

// The workload in our own form, which read_workload() reads.
std::string to_csv(const Workload& workload);

}  // namespace ductile::sim
