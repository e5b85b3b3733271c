#include "ductile/server/node_devices.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"

namespace ductile::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostCores = 1 << 20, kMostNodes = 1 << 16;
constexpr int64_t kMostGpusSaid = 1024;
constexpr size_t kMostWords = 500;

std::string words_in(const JsonFields& fields, const char* key) {
  std::string text = fields.text(key);
  if (text.size() > kMostWords) text.resize(kMostWords);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return text;
}

Gpu gpu_from(const nlohmann::json& said) {
  const JsonFields fields(said, "hardware: a GPU");
  Gpu gpu;
  gpu.vendor = gpu_vendor_from(fields.text("vendor"));
  gpu.id = words_in(fields, "id");
  gpu.name = words_in(fields, "name");
  gpu.trouble = words_in(fields, "trouble");
  if (!fields.at("memory").is_null()) gpu.memory = fields.integer("memory", 0, int64_t{1} << 50);
  if (!fields.at("numa_node").is_null())
    gpu.numa_node = static_cast<int>(fields.integer("numa_node", -1, kMostNodes));
  return gpu;
}

GpuLimits own_limits() {
  return {std::getenv("CUDA_VISIBLE_DEVICES"), std::getenv("ROCR_VISIBLE_DEVICES")};
}

}  // namespace

Json to_json(const NodeHardware& hardware) {
  Json gpus = Json::array();
  for (const Gpu& gpu : hardware.gpus)
    gpus.push_back({{"id", gpu.id},
                    {"vendor", to_string(gpu.vendor)},
                    {"name", gpu.name},
                    {"memory", gpu.memory > 0 ? Json(gpu.memory) : Json(nullptr)},
                    {"numa_node", gpu.numa_node >= 0 ? Json(gpu.numa_node) : Json(nullptr)},
                    {"trouble", gpu.trouble}});
  return {{"cores", hardware.cores},
          {"threads", hardware.threads},
          {"numa_nodes", hardware.numa_nodes},
          {"trouble", hardware.trouble},
          {"usable_gpus", hardware.usable_gpus},
          {"lost_gpus", hardware.lost_gpus},
          {"gpus", std::move(gpus)}};
}

NodeHardware hardware_from(const nlohmann::json& said) {
  const JsonFields fields(said, "hardware");
  NodeHardware out;
  out.cores = fields.integer("cores", 0, kMostCores);
  out.threads = fields.integer("threads", 0, kMostCores);
  out.numa_nodes = fields.integer("numa_nodes", 0, kMostNodes);
  out.trouble = words_in(fields, "trouble");
  const nlohmann::json& gpus = fields.array("gpus");
  if (static_cast<int64_t>(gpus.size()) > kMostGpusSaid)
    fail(ErrorCode::invalid_argument, "hardware: {} GPUs, and a node has {} at most", gpus.size(),
         kMostGpusSaid);
  for (const nlohmann::json& gpu : gpus) out.gpus.push_back(gpu_from(gpu));
  out.usable_gpus = fields.integer("usable_gpus", 0, static_cast<int64_t>(out.gpus.size()));
  out.lost_gpus = fields.integer_or("lost_gpus", 0, 0, kMostGpusSaid);
  return out;
}

std::string cores_text(const NodeHardware& hardware) {
  std::string out = fmt::format("{} core{}", hardware.cores, hardware.cores == 1 ? "" : "s");
  if (hardware.threads != hardware.cores)
    out += fmt::format(" with {} hardware threads", hardware.threads);
  if (hardware.numa_nodes > 1) out += fmt::format(", {} NUMA nodes", hardware.numa_nodes);
  return out;
}

std::string gpus_text(const NodeHardware& hardware) {
  std::vector<std::pair<std::string, int64_t>> kinds;
  for (const Gpu& gpu : hardware.gpus) {
    const std::string kind =
        gpu.trouble.empty() ? gpu.name : fmt::format("{} [{}]", gpu.name, gpu.trouble);
    const auto known = std::ranges::find(kinds, kind, &std::pair<std::string, int64_t>::first);
    if (known == kinds.end())
      kinds.emplace_back(kind, 1);
    else
      ++known->second;
  }
  std::string out;
  for (const auto& [kind, count] : kinds)
    out += fmt::format("{}{}{}", out.empty() ? "" : ", ", kind,
                       count == 1 ? "" : fmt::format(" ({})", count));
  return out;
}

fs::path NodeDevices::usual_root() {
  const char* root = std::getenv("DUCTILE_HARDWARE_ROOT");
  return root == nullptr || *root == '\0' ? "/" : root;
}

NodeDevices::NodeDevices(int64_t devices, fs::path root)
    : root_(std::move(root)),
      cores_(std::make_shared<CorePool>(devices)),
      gpus_(std::make_shared<GpuPool>(find_gpus(root_, own_limits()))),
      told_(hardware()) {}

bool NodeDevices::look() {
  // A kernel that says nothing now has said it before.
  if (const std::vector<int> usable = usable_cores(); !usable.empty()) cores_->allow(usable);
  gpus_->found(look_again(gpus_->all(), root_, own_limits()));
  // Jobs have come and gone since the last look, too.
  NodeHardware now = hardware();
  return std::exchange(told_, std::move(now)) != told_;
}

NodeHardware NodeDevices::hardware() const {
  const CoreMap& map = cores_->map();
  NodeHardware out;
  out.cores = static_cast<int64_t>(map.cores.size());
  out.threads = map.num_threads();
  out.numa_nodes = static_cast<int64_t>(map.nodes.size());
  out.trouble = map.trouble;
  if (const int64_t missing = cores_->missing(); missing > 0)
    out.trouble += fmt::format("{}{} of its processors may not be used any more",
                               out.trouble.empty() ? "" : "; ", missing);
  out.gpus = gpus_->all();
  out.usable_gpus = gpus_->usable();
  out.lost_gpus = gpus_->lost();
  return out;
}

}  // namespace ductile::server
