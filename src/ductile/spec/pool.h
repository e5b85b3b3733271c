#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/spec/cluster.h"

namespace ductile {
class Describer;
}

namespace ductile::spec {

// Nodes that a batch system lends: each is a pilot, a batch job of the service's own. To all that
// reads a cluster file it is a group of `max` nodes called NAME-1, NAME-2 ..., of which those are
// there whose pilot runs.
struct Pool {
  std::string engine = "slurm";      // the batch system
  std::string name;                  // of the pool; empty: the engine's
  std::string type = "cpu";          // of the devices
  int64_t devices = 1;               // of each pilot
  int64_t gpus = 0;                  // of each pilot, which are asked of the batch system
  int64_t min = 0, max = 1;          // pilots, whatever the demand
  std::string partition, account;    // empty: the batch system's default
  int64_t time_limit = 60;           // minutes of a pilot
  int64_t notice = 60;               // seconds before the limit in which its jobs move away
  int64_t idle = 60;                 // seconds without a job after which a pilot is given back
  int64_t checkpoint = 10;           // most seconds between a job's checkpoints; 0: as it says
  std::vector<std::string> options;  // further options of sbatch: "--exclusive"
  bool operator==(const Pool&) const = default;
};
void describe(Describer& d, Pool& pool);

// What is wrong with it; empty: nothing.
std::string error_of(const Pool& pool);
// Whether its options ask for GPUs ("--gpus=2", "--gres=gpu:a100:2", "--tres-per-node=gres/gpu:2"),
// of a number that nobody here reads.
bool options_name_gpus(const Pool& pool);
NodeGroup group_of(const Pool& pool);

// The [[pool]] tables of a cluster file, whose groups come last in its Cluster, in the same order.
// Throws as read_cluster() does.
std::vector<Pool> read_pools(const fs::path& file);
std::vector<Pool> parse_pools(std::string_view toml, std::string_view name);

}  // namespace ductile::spec
