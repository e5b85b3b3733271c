#include "ductile/run/format.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

#include <fmt/format.h>

namespace ductile::run {

std::string with_thousands(double value) {
  if (!std::isfinite(value) || std::abs(value) >= 1e15) return fmt::format("{}", value);
  if (std::abs(value) < 10 && value != std::round(value)) return fmt::format("{:.1f}", value);
  std::string text = fmt::format("{:.0f}", value);
  const size_t first = text.starts_with('-') ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string as_clock(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds >= 1e9) return "--:--";
  const auto s = static_cast<int64_t>(std::ceil(seconds));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}d {:02}:{:02}", s / 86400, s / 3600 % 24, s / 60 % 60);
}

std::string as_number(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.2e}", value);
  if (size < 0.1 && size != 0) return fmt::format("{:.4f}", value);
  if (size < 1) return fmt::format("{:.3f}", value);
  return fmt::format("{:.2f}", value);
}

std::string as_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "unknown";
  if (seconds > 0 && seconds < 0.0995) return fmt::format("{:.1f} ms", 1000 * seconds);
  if (seconds > 0 && seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto s = static_cast<int64_t>(std::llround(std::min(seconds, 1e15)));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {:02} h", s / 86400, s / 3600 % 24);
}

std::string as_bytes(double bytes) {
  if (!std::isfinite(bytes)) return "unknown";
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; std::abs(bytes) >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 || std::abs(bytes) >= 100 ? 0 : 1,
                     kUnits[unit]);
}

std::string as_energy(double joules) {
  if (!std::isfinite(joules)) return "unknown";
  return joules < 1e4 ? fmt::format("{:.0f} J", joules) : fmt::format("{:.1f} kJ", joules / 1e3);
}

std::string as_percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.2f} %", 100 * share) : fmt::format("{}", share);
}

}  // namespace ductile::run
