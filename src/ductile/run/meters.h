#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"

// What a run costs, from the counters of the operating system.
namespace ductile::run {

struct Cost {
  double wall_seconds = 0;
  double core_seconds = 0;              // CPU time of the process and its finished children
  std::optional<double> energy_joules;  // of the whole machine; absent without counters
  int64_t peak_rss_bytes = 0;

  bool operator==(const Cost&) const = default;
};

nlohmann::json to_json(const Cost& cost);  // the fields by name; energy_joules null if absent
// Throws invalid_argument that names the wrong field.
Cost cost_from_json(const nlohmann::json& value);

// Energy of the processor packages and memory, from Linux's powercap counters (RAPL; Intel and
// AMD). The counters wrap around, within an hour on a large machine, so joules() must be called
// more often than that. They count everything that runs on the machine, and reading them may need
// privileges.
class EnergyMeter {
 public:
  explicit EnergyMeter(const fs::path& powercap = "/sys/class/powercap");

  // The energy since construction; nullopt if no counter was readable at the start, or is now.
  std::optional<double> joules();
  // "measured", or why not, in words.
  std::string state() const;

 private:
  struct Zone {
    fs::path file;
    uint64_t range;  // the counter goes up to this, then starts from zero; microjoules
    uint64_t last;
  };

  std::vector<Zone> zones_;
  double microjoules_ = 0;
  bool failed_ = false;
};

// Counts from construction. `carried` is the cost of the earlier parts of the same run, as saved
// with the checkpoint from which it resumes. Sums are added, the larger peak counts, and energy is
// known only if it was always known. CPU time includes the start of the process. One thread at a
// time may use it.
class CostMeter {
 public:
  explicit CostMeter(std::optional<Cost> carried = {},
                     const fs::path& powercap = "/sys/class/powercap");

  Cost read();
  // The result of a read() that is at most this old, for frequent callers.
  const Cost& recent(std::chrono::milliseconds age);

 private:
  std::optional<Cost> carried_;
  std::optional<Cost> last_;
  std::chrono::steady_clock::time_point last_at_;
  EnergyMeter energy_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace ductile::run
