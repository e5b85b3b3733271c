#include "ductile/run/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <nlohmann/json.hpp>

#include "ductile/base/error.h"

namespace ductile::run {
namespace {

constexpr std::array<std::string_view, 4> kFixedFields = {"step", "epoch", "time", "seconds"};

// To the microsecond: seventeen digits of a time say nothing more.
double wall_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()) /
         1e6;
}

double rounded(double seconds) { return std::round(seconds * 1e3) / 1e3; }

double last_seconds(const fs::path& metrics, const fs::path& events) {
  double last = 0;
  for (const fs::path& file : {metrics, events}) {
    for_each_json_line(file, [&](nlohmann::json& line) {
      const auto at = line.find("seconds");
      if (at != line.end() && at->is_number()) last = std::max(last, at->get<double>());
    });
  }
  return last;
}

}  // namespace

MetricsWriter::MetricsWriter(const RunFolder& folder, std::optional<int64_t> resume_step)
    : metrics_(folder.metrics_file()),
      events_(folder.events_file()),
      seconds_before_(last_seconds(folder.metrics_file(), folder.events_file())),
      tensorboard_(folder.tensorboard(), resume_step.value_or(-1)) {
  if (resume_step) metrics_.truncate_after(*resume_step);
}

double MetricsWriter::seconds() const {
  return seconds_before_ +
         std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

void MetricsWriter::log(int64_t step, double epoch, std::span<const Metric> values) {
  const double wall = wall_now();
  nlohmann::json line = {
      {"step", step}, {"epoch", epoch}, {"time", wall}, {"seconds", rounded(seconds())}};
  std::vector<Scalar> scalars;
  scalars.reserve(values.size());
  for (const Metric& m : values) {
    if (std::find(kFixedFields.begin(), kFixedFields.end(), m.name) != kFixedFields.end()) {
      fail(ErrorCode::invalid_argument,
           "a metric may not be named \"{}\": each line has that field already", m.name);
    }
    line[std::string(m.name)] = json_number(m.value);
    scalars.push_back({m.name, m.value});
  }
  const std::scoped_lock lock(mutex_);
  metrics_.append(line);
  tensorboard_.scalars(step, wall, scalars);
}

void MetricsWriter::event(std::string_view kind, const nlohmann::json& fields) {
  nlohmann::json line = {{"time", wall_now()}, {"seconds", rounded(seconds())}, {"kind", kind}};
  if (fields.is_object()) {
    for (const auto& [key, value] : fields.items()) {
      if (key == "time" || key == "seconds" || key == "kind") {
        fail(ErrorCode::invalid_argument,
             "event \"{}\": a field may not be named \"{}\"; each line has it already", kind, key);
      }
      line[key] = value.is_number_float() ? json_number(value.get<double>()) : value;
    }
  }
  const std::scoped_lock lock(mutex_);
  events_.append(line);
}

void MetricsWriter::event(std::string_view kind) { event(kind, nlohmann::json::object()); }

void MetricsWriter::flush() {
  const std::scoped_lock lock(mutex_);
  metrics_.sync();
  events_.sync();
  tensorboard_.sync();
}

}  // namespace ductile::run
