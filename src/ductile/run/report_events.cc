// What a report lists of the run's events.
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/page/numbers.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/metrics.h"
#include "ductile/run/report_impl.h"

namespace ductile::run::report {
namespace {

using nlohmann::json;

// What the event `hyper` calls a hyperparameter, the key of its option, and its name in a sentence.
struct HyperName {
  const char* name;
  const char* key;
  const char* label;
};
constexpr std::array<HyperName, 8> kHyperNames{
    {{"batch_size", "train.batch_size", "batch"},
     {"lr", "optimizer.lr", "learning rate"},
     {"momentum", "optimizer.momentum", "momentum"},
     {"weight_decay", "optimizer.weight_decay", "weight decay"},
     {"beta1", "optimizer.adam.beta1", "beta1"},
     {"beta2", "optimizer.adam.beta2", "beta2"},
     {"clip_norm", "optimizer.clip_norm", "clip norm"},
     {"staleness", "train.staleness", "staleness"}}};

std::string value_text(double value) {
  return value == std::round(value) ? page::with_thousands(value) : fmt::format("{:.4g}", value);
}

// What each event `hyper` changes, from one to the next. The events come in order.
class HyperChanges {
 public:
  HyperChanges(const History& history, const spec::JobOptions& job)
      : job_(job), lr_(history.find(kLearningRate)) {}

  // Empty: the event does not say.
  std::string take(const json& event) {
    const std::map<std::string, double> now = values_of(event);
    if (now.empty()) return "";
    std::string out;
    const auto tell = [&](const std::string& key, const std::string& label, double before) {
      const double after = now.contains(key) ? now.at(key) : of_job(key);
      if (before == after || !std::isfinite(after)) return;
      out += fmt::format("{}{} {}{}", out.empty() ? "" : ", ", label,
                         std::isfinite(before) ? value_text(before) + " \u2192 " : "",
                         value_text(after));
    };
    std::map<std::string, double> others = last_;
    others.insert(now.begin(), now.end());
    for (const HyperName& h : kHyperNames) {
      others.erase(h.key);
      const bool is_lr = h.key == std::string_view("optimizer.lr");
      const double before = is_lr ? lr_before(event) : value_before(h.key);
      if (!is_lr || std::isfinite(before)) tell(h.key, h.label, before);
    }
    for (const auto& [key, value] : others) tell(key, key, value_before(key));
    last_ = now;
    last_step_ = number_at(event, "step");
    return out.empty() ? "Hyperparameters as before" : "From the next step on: " + out;
  }

 private:
  static std::map<std::string, double> values_of(const json& event) {
    std::map<std::string, double> out;
    const auto hyper = event.find("hyper");
    if (hyper == event.end() || !hyper->is_object()) return out;
    for (const HyperName& h : kHyperNames) {
      const double value = number_at(*hyper, h.name);
      if (std::isfinite(value)) out[h.key] = value;
    }
    const auto options = hyper->find("options");
    if (options == hyper->end() || !options->is_object()) return out;
    for (const auto& [key, option] : options->items()) {
      double value = NAN;
      if (number_from_json(option, value) && std::isfinite(value)) out[key] = value;
    }
    return out;
  }

  double value_before(const std::string& key) const {
    const auto known = last_.find(key);
    return known == last_.end() ? of_job(key) : known->second;
  }

  double of_job(const std::string& key) const {
    const OptionField* field = options_.find(key);
    if (field == nullptr) return NAN;
    return std::visit(
        [](const auto* value) -> double {
          if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(*value)>>)
            return static_cast<double>(*value);
          else
            return NAN;
        },
        field->ref);
  }

  // A schedule moves the rate between two such events, so it is compared with that of the last
  // metric line, or of the last such event, which may be later: lines of trials that a tuner
  // dropped are in no curve. NaN: there is none.
  double lr_before(const json& event) const {
    const double step = number_at(event, "step");
    double out = NAN, at = -INFINITY;
    if (lr_ != nullptr) {
      for (const Point& p : lr_->points) {
        if (static_cast<double>(p.step) > step) continue;
        out = p.value;
        at = static_cast<double>(p.step);
      }
    }
    const auto told = last_.find("optimizer.lr");
    return told != last_.end() && last_step_ >= at ? told->second : out;
  }

  spec::JobOptions job_;
  OptionSet options_{job_};
  const Curve* lr_;
  std::map<std::string, double> last_;  // by key, as the last such event has them,
  double last_step_ = NAN;              // at this step
};

bool is_probe_round(const json& event) {
  return event.value("kind", json()) == "rate_control" &&
         event.value("what", json()) == "probe_round";
}

}  // namespace

std::vector<ShownEvent> shown_events(const History& history, const spec::JobOptions& job) {
  std::vector<ShownEvent> out;
  std::optional<HyperChanges> changes;
  for (const json& event : history.events) {
    if (is_trial(event) || is_probe_round(event)) continue;
    out.push_back({&event, describe_event(event)});
    if (out.back().row.kind != "hyper") continue;
    if (!changes) changes.emplace(history, job);
    if (std::string text = changes->take(event); !text.empty())
      out.back().row.text = std::move(text);
  }
  return out;
}

}  // namespace ductile::run::report
