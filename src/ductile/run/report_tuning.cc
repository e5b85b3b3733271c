#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/page/html.h"
#include "ductile/page/numbers.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/report_impl.h"
#include "ductile/run/tuning_cost.h"

namespace ductile::run::report {
namespace {

using nlohmann::json;
using page::as_duration;
using page::as_number;
using page::with_thousands;

constexpr double kWidth = 120, kHeight = 28;
constexpr size_t kMostPoints = 1000;

// "lr 0.01, momentum 0.9".
std::string setting_text(const json& move) {
  const auto at = move.find("setting");
  if (at == move.end() || !at->is_object()) return "the job's own setting";
  std::string out;
  for (const auto& [name, value] : at->items()) {
    double number = NAN;
    const bool is_number = number_from_json(value, number);
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name,
                       is_number ? page::as_setting(number) : dump_json(value));
  }
  return out;
}

// What became of one trial, over all its moves.
struct Trial {
  double first_step = NAN;
  std::string setting, state, why;
  double epochs = 0, loss = NAN;
  bool is_chosen = false;
  std::vector<std::pair<double, double>> curve;  // epochs, loss
};
using Trials = std::map<TuningRecord::Trial, Trial>;

// What all curves of a search are drawn in, so that they can be compared.
struct Frame {
  double epochs = 0, least = INFINITY, most = -INFINITY;

  void take(const Trial& trial) {
    if (trial.curve.empty()) return;
    // What rises far above the loss before any training would flatten all others.
    most = std::max(most, trial.curve.front().second);
    for (const auto& [epoch, loss] : trial.curve) {
      epochs = std::max(epochs, epoch);
      least = std::min(least, loss);
    }
  }
};

void read_curve(const json& move, Trial& trial) {
  const auto curve = move.find("curve");
  if (curve == move.end() || !curve->is_array()) return;
  for (const json& point : *curve) {
    double epoch = NAN, loss = NAN;
    if (point.is_array() && point.size() == 2 && number_from_json(point[0], epoch) &&
        number_from_json(point[1], loss) && std::isfinite(epoch) && std::isfinite(loss) &&
        epoch >= 0 && trial.curve.size() < kMostPoints)
      trial.curve.emplace_back(epoch, loss);
  }
}

// The loss over the epochs; the top is the largest loss that a trial began with, the bottom the
// least of the search.
page::Cell picture(const Trial& trial, const Frame& frame) {
  if (trial.curve.empty() || !(frame.epochs > 0)) return {};
  const double height = std::max(frame.most - frame.least, 1e-300);
  std::string points;
  for (const auto& [epoch, loss] : trial.curve) {
    points += fmt::format(
        "{}{:.1f},{:.1f}", points.empty() ? "" : " ", 1 + (kWidth - 2) * epoch / frame.epochs,
        kHeight - 1 - (kHeight - 2) * (std::min(loss, frame.most) - frame.least) / height);
  }
  const std::string label =
      fmt::format("loss {} to {} over {} epochs", as_number(trial.curve.front().second),
                  as_number(trial.curve.back().second), as_number(trial.curve.back().first));
  return page::Cell::of_markup(
      fmt::format("<svg class=\"trial\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">"
                  "<polyline points=\"{}\"/></svg>",
                  kWidth, kHeight, page::escape_html(label), points));
}

// A search that ends by its budget decides nothing more of a trial that it did not choose.
void drop_the_rest(Trials& trials, const std::map<int, bool>& searches_over) {
  for (auto& [key, trial] : trials) {
    const auto over = searches_over.find(key.first);
    const bool is_open =
        trial.state == "started" || trial.state == "resumed" || trial.state == "ran";
    if (over == searches_over.end() || trial.is_chosen || !is_open) continue;
    trial.state = "dropped";
    trial.why = over->second ? "the search was over, and another trial was better"
                             : "the search was over, and no trial was better than the setting "
                               "before it, which was kept";
  }
}

Trials trials_of(const TuningRecord& record) {
  Trials trials;
  std::map<int, bool> searches_over;  // whether one of their trials was chosen
  for (const auto& [event, search] : record.entries) {
    for (const json& move : event->at("moves")) {
      const double number = move.is_object() ? number_at(move, "trial") : NAN;
      if (!(std::abs(number) < 1e9)) continue;
      const std::string what = text_at(move, "what");
      if (what == "chosen") searches_over[search] = number >= 0;
      if (number < 0) continue;  // what there was before the search
      Trial& trial = trials[{search, static_cast<int64_t>(number)}];
      if (trial.setting.empty()) {
        trial.first_step = number_at(*event, "step");
        trial.setting = setting_text(move);
      }
      if (!trial.is_chosen) trial.state = what;
      if (what == "ran" || what == "diverged") {
        trial.epochs = number_at(move, "epochs");
        trial.loss = number_at(move, "loss");
        read_curve(move, trial);
      }
      // Runs of earlier versions do not say why a trial was dropped; why it was begun is not that.
      if (const std::string why = text_at(move, "why"); !why.empty() || what == "dropped")
        trial.why = why;
      trial.is_chosen |= what == "chosen";
    }
  }
  drop_the_rest(trials, searches_over);
  return trials;
}

std::string samples_text(double samples) {
  return std::isfinite(samples) ? with_thousands(samples) : "";
}

std::string time_text(double seconds) { return std::isfinite(seconds) ? as_duration(seconds) : ""; }

// What the trials cost beside the whole run: what is known of it.
std::string cost_table(const TuningRecord& record, const History& history) {
  const TrialCost all = cost_of_trials(record), kept = cost_of_kept_trials(record);
  TrialCost whole{NAN, history.seconds, NAN};
  if (history.samples) whole.samples = static_cast<double>(*history.samples);
  if (history.cost) {
    whole.wall_seconds = history.cost->wall_seconds;
    whole.core_seconds = history.cost->core_seconds;
  }
  page::HtmlTable table({{"What tuning cost"},
                         {"All trials", true},
                         {"Of them kept", true},
                         {"Whole run", true},
                         {"Share of the run"}},
                        "tuning-cost");
  bool is_empty = true;
  const auto row = [&](const char* name, double TrialCost::*of, auto&& text) {
    if (!std::isfinite(all.*of)) return;
    const double share = whole.*of > 0 ? all.*of / whole.*of : NAN;
    table.row({name, text(all.*of), text(kept.*of), text(whole.*of),
               std::isfinite(share)
                   ? page::Cell::of_markup(page::meter(share, page::as_percent(share)))
                   : page::Cell()});
    is_empty = false;
  };
  row("Samples", &TrialCost::samples, samples_text);
  row("Time", &TrialCost::wall_seconds, time_text);
  row("Core time", &TrialCost::core_seconds, time_text);
  return is_empty ? "" : table.html();
}

std::string trials_table(const Trials& trials, const TuningRecord& record) {
  page::HtmlTable table({{"Search", true},
                         {"Trial", true},
                         {"Seen at step", true},
                         {"Setting"},
                         {"Epochs", true},
                         {"Loss", true},
                         {"Curve"},
                         {"State"},
                         {"Why"},
                         {"Samples", true},
                         {"Time", true},
                         {"Core time", true}},
                        "tuning");
  std::map<int, Frame> frames;
  for (const auto& [key, t] : trials) frames[key.first].take(t);
  for (const auto& [key, t] : trials) {
    const auto found = record.costs.find(key);
    const TrialCost cost = found == record.costs.end() ? TrialCost{NAN, NAN, NAN} : found->second;
    table.row(
        {std::to_string(key.first), std::to_string(key.second),
         std::isfinite(t.first_step) ? with_thousands(t.first_step) : "", t.setting,
         as_number(t.epochs), std::isfinite(t.loss) ? as_number(t.loss) : "",
         picture(t, frames[key.first]), page::Cell(t.state).with_tone("state"), t.why,
         samples_text(cost.samples), time_text(cost.wall_seconds), time_text(cost.core_seconds)},
        t.is_chosen             ? "best"
        : t.state == "diverged" ? "bad"
                                : "");
  }
  return table.html();
}

}  // namespace

bool is_trial(const json& event) {
  return event.value("kind", json()) == "tune" && tuning_text(event).empty();
}

std::string tuning_text(const json& event) {
  const auto moves = event.find("moves");
  if (moves == event.end() || !moves->is_array()) return "";
  for (const json& move : *moves) {
    if (!move.is_object()) continue;
    const std::string what = text_at(move, "what");
    if (what != "chosen" && what != "went_back") continue;
    return fmt::format("{} {}: {}", what == "chosen" ? "the search kept" : "the run went back from",
                       setting_text(move), text_at(move, "why"));
  }
  return "";
}

std::string tuning_html(const History& history) {
  const TuningRecord record = read_tuning(history.events);
  const Trials trials = trials_of(record);
  if (trials.empty()) return {};
  return cost_table(record, history) + trials_table(trials, record);
}

}  // namespace ductile::run::report
