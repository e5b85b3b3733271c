#include "ductile/page/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <iterator>

#include <fmt/format.h>

namespace ductile::page {

std::string with_thousands(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (std::abs(value) >= 1e15) return fmt::format("{:.2e}", value);
  if (value == 0) return "0";
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
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size < 1e-3 || size >= 1e6) return fmt::format("{:.2e}", value);
  if (size < 0.1) return fmt::format("{:.4f}", value);
  if (size < 1) return fmt::format("{:.3f}", value);
  return fmt::format("{:.2f}", value);
}

std::string as_setting(double value) {
  const bool is_whole = value == std::round(value) && std::abs(value) < 1e15;
  return is_whole ? fmt::format("{:.0f}", value) : fmt::format("{:.6g}", value);
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

std::string as_short_duration(double value) {
  if (!std::isfinite(value)) return "unknown";
  struct Unit {
    double from, seconds;  // the least value shown in it, and its length
    const char* name;
  };
  // Each begins where three digits of the one before would round up to it.
  static constexpr Unit kUnits[] = {{172'800, 86'400, "d"}, {7'200, 3'600, "h"},
                                    {120, 60, "min"},       {0.9995, 1, "s"},
                                    {9.995e-4, 1e-3, "ms"}, {0, 1e-6, "us"}};
  const double size = std::abs(value);
  if (size == 0) return "0 s";
  const Unit& unit = *std::find_if(std::begin(kUnits), std::end(kUnits),
                                   [&](const Unit& u) { return size >= u.from; });
  const double in_unit = value / unit.seconds;
  if (std::abs(in_unit) >= 999.5) return fmt::format("{} {}", with_thousands(in_unit), unit.name);
  return fmt::format("{:.3g} {}", in_unit, unit.name);
}

std::string as_bytes(double bytes) {
  if (!std::isfinite(bytes)) return "unknown";
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; std::abs(bytes) >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  const bool whole = bytes == std::round(bytes) || std::abs(bytes) >= 100;
  return fmt::format("{:.{}f} {}", bytes, whole ? 0 : 1, kUnits[unit]);
}

std::string as_energy(double joules) {
  if (!std::isfinite(joules)) return "unknown";
  return joules < 1e4 ? fmt::format("{:.0f} J", joules) : fmt::format("{:.1f} kJ", joules / 1e3);
}

std::string as_metric(std::string_view metric, double value) {
  return metric == "accuracy" ? as_percent(value) : as_number(value);
}

std::string as_percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.2f} %", 100 * share) : fmt::format("{}", share);
}

std::string local_time(double seconds) {
  if (!(seconds > 0 && seconds < 1e11)) return "unknown time";
  const auto t = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::localtime_r(&t, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string plural(double count, std::string_view noun) {
  return fmt::format("{} {}{}", with_thousands(count), noun, count == 1 ? "" : "s");
}

}  // namespace ductile::page
