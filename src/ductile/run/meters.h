#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"

// What a run costs, read from the operating system's counters.
namespace ductile::run {

struct Cost {
  double wall_seconds = 0;
  double core_seconds = 0;              // CPU time of the process and its finished children
  std::optional<double> energy_joules;  // of the whole machine; absent without counters
  int64_t peak_rss_bytes = 0;

  bool operator==(const Cost&) const = default;
};

nlohmann::json to_json(const Cost& cost);  // the fields by name; energy_joules null when absent
// Throws invalid_argument naming the field that is wrong.
Cost cost_from_json(const nlohmann::json& value);

// Energy of the processor packages and memory, from Linux's powercap counters (RAPL; Intel and
// AMD). They wrap round, within an hour on a large machine: call joules() more often than that.
// They count everything that runs on the machine, and reading them may need privileges.
class EnergyMeter {
 public:
  explicit EnergyMeter(const fs::path& powercap = "/sys/class/powercap");

  // Since construction. nullopt where no counter can be read, at the start or now.
  std::optional<double> joules();

 private:
  struct Zone {
    fs::path file;
    uint64_t range;  // counts up to this, then from zero; microjoules
    uint64_t last;
  };

  std::vector<Zone> zones_;
  double microjoules_ = 0;
  bool failed_ = false;
};

// Counts from construction; `carried` is what earlier parts of the same run cost, as saved with the
// checkpoint it resumes from: sums are added, of peaks the larger counts, and energy is known only
// where it was known all along. CPU time includes the process's own start-up. One thread at a time.
class CostMeter {
 public:
  explicit CostMeter(std::optional<Cost> carried = {},
                     const fs::path& powercap = "/sys/class/powercap");

  Cost read();
  // What read() gave, at most so long ago: for those who ask often.
  const Cost& recent(std::chrono::milliseconds age);

 private:
  std::optional<Cost> carried_;
  std::optional<Cost> last_;
  std::chrono::steady_clock::time_point last_at_;
  EnergyMeter energy_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace ductile::run
