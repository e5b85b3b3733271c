#include "ductile/run/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/run/json_lines.h"

namespace ductile::run {
namespace {

constexpr std::array<std::string_view, 6> kFixedFields = {"step",    "epoch",      "time",
                                                          "seconds", "generation", "begins"};

// To the microsecond: seventeen digits of a time say nothing more.
double wall_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()) /
         1e6;
}

double rounded(double seconds) { return std::round(seconds * 1e3) / 1e3; }

double last_seconds(const RunFolder& folder) {
  try {
    return end_of_diaries(folder).seconds;
  } catch (const Error&) {  // it cannot be read now: the clock begins anew
    return 0;
  }
}

}  // namespace

MetricsWriter::MetricsWriter(const RunFolder& folder, std::optional<int64_t> resume_step,
                             uint64_t generation, Clock clock)
    : metrics_(folder.metrics_file()),
      events_(folder.events_file()),
      generation_(generation),
      clock_(std::move(clock)),
      seconds_before_(last_seconds(folder)),
      tensorboard_folder_(folder.tensorboard()),
      resume_step_(resume_step.value_or(-1)) {
  tensorboard();
  if (!resume_step) return;
  nlohmann::json line = {{"begins", true},
                         {"step", *resume_step},
                         {"time", wall_now()},
                         {"seconds", rounded(seconds())}};
  if (generation_ > 0) line["generation"] = generation_;
  metrics_.append(line);
}

void MetricsWriter::set_generation(uint64_t generation) {
  const std::scoped_lock lock(mutex_);
  generation_ = generation;
}

// Null while its file cannot be made; the next line tries again.
TensorBoardWriter* MetricsWriter::tensorboard() {
  try {
    if (!tensorboard_) tensorboard_.emplace(tensorboard_folder_, resume_step_);
    return &*tensorboard_;
  } catch (const std::exception& e) {
    trouble_ = e.what();
    return nullptr;
  }
}

std::string MetricsWriter::take_trouble() {
  const std::scoped_lock lock(mutex_);
  for (Diary* diary : {&metrics_, &events_}) {
    if (std::string text = diary->take_trouble(); !text.empty()) return text;
  }
  return std::exchange(trouble_, {});
}

double MetricsWriter::seconds() const {
  const std::optional<double> told = clock_ ? clock_() : std::nullopt;
  const double now = told.value_or(
      seconds_before_ +
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count());
  double latest = latest_;
  while (latest < now && !latest_.compare_exchange_weak(latest, now)) continue;
  return std::max(latest, now);
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
  if (generation_ > 0) line["generation"] = generation_;
  metrics_.append(line);
  try {
    if (TensorBoardWriter* writer = tensorboard()) writer->scalars(step, wall, scalars);
  } catch (const std::exception& e) {
    trouble_ = e.what();
  }
}

void MetricsWriter::event(std::string_view kind, const nlohmann::json& fields) {
  nlohmann::json line = {{"time", wall_now()}, {"seconds", rounded(seconds())}, {"kind", kind}};
  if (fields.is_object()) {
    for (const auto& [key, value] : fields.items()) {
      if (key == "time" || key == "seconds" || key == "kind" || key == "generation") {
        fail(ErrorCode::invalid_argument,
             "event \"{}\": a field may not be named \"{}\"; each line has it already", kind, key);
      }
      line[key] = value.is_number_float() ? json_number(value.get<double>()) : value;
    }
  }
  const std::scoped_lock lock(mutex_);
  if (generation_ > 0) line["generation"] = generation_;
  events_.append(line);
}

void MetricsWriter::event(std::string_view kind) { event(kind, nlohmann::json::object()); }

void MetricsWriter::flush() {
  const std::scoped_lock lock(mutex_);
  metrics_.sync();
  events_.sync();
  try {
    if (tensorboard_) tensorboard_->sync();
  } catch (const std::exception& e) {
    trouble_ = e.what();
  }
}

}  // namespace ductile::run
