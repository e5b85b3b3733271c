#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/fleet/metric_text_impl.h"
#include "ductile/run/metrics.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

struct KnownMetric {
  std::string_view name, text;
  bool share = false;
};
constexpr KnownMetric kKnownMetrics[] = {
    {run::kTrainLoss, "loss"},
    {run::kTrainAccuracy, "accuracy", true},
    {run::kEvalLoss, "test loss"},
    {run::kEvalAccuracy, "test accuracy", true},
    {run::kEvalPerplexity, "test perplexity"},
    {run::kEvalCalibrationError, "test calibration error"},
    {run::kBatchSize, "batch"},
    {run::kNoiseScale, "noise scale"},
};

bool is_no_metric(std::string_view key) {
  for (const char* other : {"step", "epoch", "time", "seconds", "generation", "begins", "logged"})
    if (key == other) return true;
  return false;
}

// JSON has no NaN or infinity: those are words.
std::string value_text(const Json& value, bool share) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return "?";
  const double number = value.get<double>();
  return share ? fmt::format("{:.1f} %", 100 * number) : fmt::format("{:.4g}", number);
}

std::string metric_text_of(std::string_view name, const Json& value) {
  if (name == run::kSamplesPerSecond) return value_text(value, false) + " samples/s";
  for (const KnownMetric& known : kKnownMetrics)
    if (known.name == name) return fmt::format("{} {}", known.text, value_text(value, known.share));
  constexpr std::string_view kTrain = "train/", kEval = "eval/";
  const std::string text = value_text(value, false);
  if (name.starts_with(kTrain)) return fmt::format("{} {}", name.substr(kTrain.size()), text);
  if (name.starts_with(kEval)) return fmt::format("test {} {}", name.substr(kEval.size()), text);
  return fmt::format("{} {}", name, text);
}

}  // namespace

std::string MetricText::add(std::string_view text) {
  rest_ += text;
  std::string out;
  size_t begin = 0;
  for (size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1)
    out += line(std::string_view(rest_).substr(begin, end - begin));
  rest_.erase(0, begin);
  return out;
}

std::string MetricText::line(std::string_view text) {
  const Json values = parse_json<Json>(text);
  if (!values.is_object() || !values.contains("step") || !values["step"].is_number_integer())
    return "";
  if (values.contains("generation") && values["generation"].is_number_integer()) {
    const auto generation = values["generation"].get<int64_t>();
    if (generation < generation_) return "";
    generation_ = generation;
  }
  const auto step = values["step"].get<int64_t>();
  if (values.contains("begins"))
    return step == 0 ? "" : fmt::format("goes on after step {}\n", step);
  std::string out = fmt::format("step {}", step);
  if (values.contains("epoch") && values["epoch"].is_number())
    out += fmt::format("  epoch {:.2f}", values["epoch"].get<double>());
  for (const auto& [key, value] : values.items())
    if (!is_no_metric(key)) out += "  " + metric_text_of(key, value);
  return out + "\n";
}

}  // namespace ductile::cli
