#include "ductile/run/meters.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include <sys/resource.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile::run {
namespace {

std::optional<uint64_t> read_counter(const fs::path& file) {
  try {
    const std::string text = read_file(file);
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return std::nullopt;
    return value;
  } catch (const Error&) {
    return std::nullopt;  // absent, or not ours to read
  }
}

std::string read_name(const fs::path& zone) {
  try {
    std::string name = read_file(zone / "name");
    while (!name.empty() && name.back() == '\n') name.pop_back();
    return name;
  } catch (const Error&) {
    return {};
  }
}

// Packages hold their cores; memory is counted beside them. The whole-platform zone ("psys") and
// the memory-mapped twins of the same counters would count twice.
bool counts(std::string_view folder, std::string_view name) {
  if (!folder.starts_with("intel-rapl:")) return false;
  return name.starts_with("package") || name == "dram";
}

double cpu_seconds(const rusage& usage) {
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

EnergyMeter::EnergyMeter(const fs::path& powercap) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(powercap, error)) {
    const fs::path& zone = entry.path();
    if (!counts(zone.filename().string(), read_name(zone))) continue;
    const auto range = read_counter(zone / "max_energy_range_uj");
    const auto now = read_counter(zone / "energy_uj");
    if (range && now) {
      zones_.push_back({zone / "energy_uj", *range, *now});
    } else {
      failed_ = true;  // part of the energy would be a wrong figure, not a small one
    }
  }
}

std::optional<double> EnergyMeter::joules() {
  if (failed_ || zones_.empty()) return std::nullopt;
  for (Zone& zone : zones_) {
    const auto now = read_counter(zone.file);
    if (!now) {
      failed_ = true;
      return std::nullopt;
    }
    const uint64_t used = *now >= zone.last ? *now - zone.last : zone.range - zone.last + *now;
    microjoules_ += static_cast<double>(used);
    zone.last = *now;
  }
  return microjoules_ * 1e-6;
}

std::string EnergyMeter::state() const {
  if (failed_) return "not measured: some of this machine's counters cannot be read";
  return zones_.empty() ? "not measured: this machine shows no counters" : "measured";
}

CostMeter::CostMeter(std::optional<Cost> carried, const fs::path& powercap)
    : carried_(std::move(carried)), energy_(powercap), begin_(std::chrono::steady_clock::now()) {}

Cost CostMeter::read() {
  Cost cost;
  cost.wall_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  cost.energy_joules = energy_.joules();
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    if (::getrusage(who, &usage) != 0) continue;
    cost.core_seconds += cpu_seconds(usage);
    cost.peak_rss_bytes = std::max(cost.peak_rss_bytes, int64_t{usage.ru_maxrss} * 1024);
  }
  if (carried_) {
    cost.wall_seconds += carried_->wall_seconds;
    cost.core_seconds += carried_->core_seconds;
    cost.peak_rss_bytes = std::max(cost.peak_rss_bytes, carried_->peak_rss_bytes);
    if (cost.energy_joules && carried_->energy_joules) {
      *cost.energy_joules += *carried_->energy_joules;
    } else {
      cost.energy_joules.reset();
    }
  }
  return cost;
}

const Cost& CostMeter::recent(std::chrono::milliseconds age) {
  const auto now = std::chrono::steady_clock::now();
  if (!last_ || now > last_at_ + age) {
    last_ = read();
    last_at_ = now;
  }
  return *last_;
}

nlohmann::json to_json(const Cost& cost) {
  nlohmann::json value = {{"wall_seconds", cost.wall_seconds},
                          {"core_seconds", cost.core_seconds},
                          {"energy_joules", nullptr},
                          {"peak_rss_bytes", cost.peak_rss_bytes}};
  if (cost.energy_joules) value["energy_joules"] = *cost.energy_joules;
  return value;
}

Cost cost_from_json(const nlohmann::json& value) {
  const auto number = [&](const char* key) -> std::optional<double> {
    const auto at = value.find(key);
    if (at == value.end() || at->is_null()) return std::nullopt;
    if (!at->is_number()) {
      fail(ErrorCode::invalid_argument, "cost: {} must be a number, not {}", key, dump_json(*at));
    }
    return at->get<double>();
  };
  if (!value.is_object()) {
    fail(ErrorCode::invalid_argument, "cost: must be an object, not {}", value.type_name());
  }
  Cost cost;
  cost.wall_seconds = number("wall_seconds").value_or(0);
  cost.core_seconds = number("core_seconds").value_or(0);
  cost.energy_joules = number("energy_joules");
  cost.peak_rss_bytes = static_cast<int64_t>(number("peak_rss_bytes").value_or(0));
  return cost;
}

}  // namespace ductile::run
