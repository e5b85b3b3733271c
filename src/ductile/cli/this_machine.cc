#include "ductile/cli/this_machine.h"

#include <algorithm>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"
#include "ductile/cli/other_commands.h"

namespace ductile::cli {
namespace {

constexpr int64_t kMostRanks = 16;

// The lines of the link between processes of this machine.
std::string measured_link(int64_t devices) {
  const std::string text =
      fleet_output({"bench", "all-reduce", "--workers",
                    std::to_string(std::min(devices, kMostRanks)), "--transport", "shm", "--sizes",
                    "4K", "--algorithms", "ring", "--seconds", "0.01", "--recalibrate", "--json"},
                   "the link between processes");
  const nlohmann::json found = parse_json(text, "ductile bench all-reduce", ErrorCode::internal);
  const nlohmann::json& link = found.at("calibration").at("inside");
  // What it keeps up: a tensor is larger than the burst that a queue takes.
  const double sustained = link.value("sustained", 0.0);
  return fmt::format("intra_bandwidth = {:.4g}  # bytes per second\nintra_latency = {:.4g}  # s\n",
                     sustained > 0 ? sustained : link.at("bandwidth").get<double>(),
                     link.at("latency").get<double>());
}

}  // namespace

std::string describe_machine(int64_t devices) {
  const MemoryShare memory = memory_share();
  const int64_t bytes = memory.limit > 0 ? std::min(memory.limit, memory.total) : memory.total;
  return fmt::format(
      "# This machine, by ductile profile --devices: the memory in equal parts, the link as it was "
      "measured.\n[[nodes]]\ntype = \"cpu\"\ndevices = {}\nmemory = {}  # bytes of each\n{}",
      devices, bytes / devices, devices > 1 ? measured_link(devices) : "");
}

}  // namespace ductile::cli
