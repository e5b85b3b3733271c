#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/server/core_pool.h"
#include "ductile/server/gpu_pool.h"

namespace ductile::server {

// What there is on a node, as its agent says it.
struct NodeHardware {
  int64_t cores = 0, threads = 0;  // physical cores, and their hardware threads
  int64_t numa_nodes = 1;
  std::string trouble;  // what is not as it should be; empty: nothing
  std::vector<Gpu> gpus;
  int64_t usable_gpus = 0;  // that jobs may have
  int64_t lost_gpus = 0;    // that have failed since a job got them, and which it still has
  // Where jobs hold so many, one that has failed since among them or not.
  int64_t free_gpus(int64_t held) const {
    return std::clamp<int64_t>(usable_gpus + lost_gpus - held, 0, usable_gpus);
  }
  bool operator==(const NodeHardware&) const = default;
};

nlohmann::ordered_json to_json(const NodeHardware& hardware);
// What an agent has said. Throws invalid_argument for what no agent says.
NodeHardware hardware_from(const nlohmann::json& said);

// "16 cores with 32 hardware threads, 2 NUMA nodes".
std::string cores_text(const NodeHardware& hardware);
// "NVIDIA H100 80GB HBM3 (2), AMD Instinct MI210"; empty: it has none.
std::string gpus_text(const NodeHardware& hardware);

// The devices of the machine on which this process runs, shared out among the processes of jobs.
// One thread uses it.
class NodeDevices {
 public:
  // Tests put a made-up machine's GPUs below another root, also by DUCTILE_HARDWARE_ROOT.
  static fs::path usual_root();
  explicit NodeDevices(int64_t devices, fs::path root = usual_root());

  // What is there can change: GPUs fail, cores are taken offline, a control group is made smaller.
  // Whether hardware() says something else from now on.
  bool look();

  NodeHardware hardware() const;
  const std::shared_ptr<CorePool>& cores() const { return cores_; }
  const std::shared_ptr<GpuPool>& gpus() const { return gpus_; }

 private:
  const fs::path root_;
  const std::shared_ptr<CorePool> cores_;
  const std::shared_ptr<GpuPool> gpus_;
  NodeHardware told_;  // by the last look
};

}  // namespace ductile::server
