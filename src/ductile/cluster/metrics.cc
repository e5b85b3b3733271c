#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <unistd.h>

#include "ductile/cluster/metrics_impl.h"

namespace ductile::cluster {
namespace {

// The value of a label: quotes, backslashes and line ends are escaped.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

void MetricsText::begin(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void MetricsText::sample(const Labels& labels, double value, std::string_view suffix) {
  text_ += name_;
  text_ += suffix;
  const char* before = "{";
  for (const auto& [label, text] : labels) {
    text_ += fmt::format("{}{}=\"{}\"", before, label, escaped(text));
    before = ",";
  }
  if (labels.size() > 0) text_ += '}';
  text_ += fmt::format(" {}\n", number(value));
}

void RequestCounts::count(std::string_view method, std::string_view route, int status,
                          double seconds) {
  const std::lock_guard lock(mutex_);
  Route& r = routes_[{method, route}];
  ++r.by_code[status];
  ++r.count;
  r.seconds += seconds;
  for (size_t i = 0; i < kBounds.size(); ++i)
    if (seconds <= kBounds[i]) ++r.up_to[i];
}

void RequestCounts::write(MetricsText& out) const {
  const std::lock_guard lock(mutex_);
  out.begin("ductile_requests_total", "counter",
            "Requests by route and code; without a route: refused by their heads.");
  for (const auto& [key, route] : routes_)
    for (const auto& [code, count] : route.by_code)
      out.sample({{"method", key.first}, {"route", key.second}, {"code", std::to_string(code)}},
                 static_cast<double>(count));
  out.begin("ductile_request_seconds", "histogram",
            "Time from a whole request to its answer, without sending it.");
  for (const auto& [key, route] : routes_) {
    if (key.second.empty()) continue;
    for (size_t i = 0; i < kBounds.size(); ++i)
      out.sample(
          {{"method", key.first}, {"route", key.second}, {"le", fmt::format("{}", kBounds[i])}},
          static_cast<double>(route.up_to[i]), "_bucket");
    out.sample({{"method", key.first}, {"route", key.second}, {"le", "+Inf"}},
               static_cast<double>(route.count), "_bucket");
    out.sample({{"method", key.first}, {"route", key.second}}, route.seconds, "_sum");
    out.sample({{"method", key.first}, {"route", key.second}}, static_cast<double>(route.count),
               "_count");
  }
}

void write_process_metrics(MetricsText& out) {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  out.begin("process_resident_memory_bytes", "gauge", "Memory that this process has.");
  out.sample({}, static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  std::error_code error;
  std::filesystem::directory_iterator files("/proc/self/fd", error);
  int64_t open = 0;
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) ++open;
  out.begin("process_open_fds", "gauge", "Descriptors that this process has.");
  out.sample({}, static_cast<double>(open));
}

}  // namespace ductile::cluster
