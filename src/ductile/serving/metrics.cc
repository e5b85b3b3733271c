#include "ductile/serving/metrics.h"

#include <algorithm>

#include <fmt/format.h>

namespace ductile::serving {
namespace {

std::string one(std::string_view name, std::string_view help, std::string_view type, double value) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
}

}  // namespace

void Histogram::add(double value) {
  ++counts_[static_cast<size_t>(std::ranges::lower_bound(bounds_, value) - bounds_.begin())];
  sum_ += value;
}

std::string Histogram::text(std::string_view name, std::string_view help) const {
  std::string out = fmt::format("# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  int64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bound, below);
  }
  return out + fmt::format("{0}_sum {1}\n{0}_count {2}\n", name, sum_, below);
}

std::string Metrics::text() const {
  std::string out =
      "# HELP ductile_serving_answers_total Answers to inference requests, by status.\n"
      "# TYPE ductile_serving_answers_total counter\n";
  for (const auto& [status, count] : answers)
    out += fmt::format("ductile_serving_answers_total{{status=\"{}\"}} {}\n", status, count);
  out += request_seconds.text("ductile_serving_request_seconds",
                              "From the request to the answer, of those that succeeded.");
  out += batch_seconds.text("ductile_serving_batch_seconds", "Time of one batch.");
  out += batch_samples.text("ductile_serving_batch_samples", "Samples in one batch.");
  const auto add = [&](const char* name, const char* help, const char* type, auto value) {
    out += one(name, help, type, static_cast<double>(value));
  };
  add("ductile_serving_samples_total", "Samples predicted.", "counter", samples);
  add("ductile_serving_filled_total", "Places of batches that were only filled up.", "counter",
      filled);
  add("ductile_serving_busy_seconds_total", "Time that the model ran.", "counter", busy_seconds);
  add("ductile_serving_reloads_total", "Changes of the weights.", "counter", reloads);
  add("ductile_serving_refused_reloads_total", "Weights that were not taken.", "counter",
      refused_reloads);
  add("ductile_serving_waiting_samples", "Samples that wait for a batch.", "gauge", waiting);
  add("ductile_serving_requests_in_flight", "Inference requests that are not answered yet.",
      "gauge", in_flight);
  add("ductile_serving_connections", "Open connections.", "gauge", connections);
  add("ductile_serving_model_version", "The step of the weights.", "gauge", version);
  return out;
}

}  // namespace ductile::serving
