#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/page/html.h"
#include "ductile/page/numbers.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/report_impl.h"

namespace ductile::run::report {
namespace {

using nlohmann::json;
using page::as_number;

// "lr 0.01, momentum 0.9".
std::string setting_text(const json& move) {
  const auto at = move.find("setting");
  if (at == move.end() || !at->is_object()) return "the job's own setting";
  std::string out;
  for (const auto& [name, value] : at->items()) {
    double number = NAN;
    const bool is_number = number_from_json(value, number);
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name,
                       is_number ? as_number(number) : dump_json(value));
  }
  return out;
}

// What became of one trial, over all its moves.
struct Trial {
  int64_t first_step = 0;
  std::string setting, state, why;
  double epochs = 0, loss = NAN;
  bool is_chosen = false;
};

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
  std::map<std::pair<int, int64_t>, Trial> trials;  // by search and number
  int search = 1;
  for (const json& event : history.events) {
    if (event.value("kind", json()) != "tune") continue;
    const auto moves = event.find("moves");
    if (moves == event.end() || !moves->is_array()) continue;
    for (const json& move : *moves) {
      const double number = number_at(move, "trial");
      if (!move.is_object() || !std::isfinite(number)) continue;
      const std::string what = text_at(move, "what");
      Trial& trial = trials[{search, static_cast<int64_t>(number)}];
      if (trial.setting.empty()) {
        trial.first_step = static_cast<int64_t>(number_at(event, "step"));
        trial.setting = setting_text(move);
      }
      if (!trial.is_chosen) trial.state = what;
      if (what == "ran" || what == "diverged") {
        trial.epochs = number_at(move, "epochs");
        trial.loss = number_at(move, "loss");
      }
      if (const std::string why = text_at(move, "why"); !why.empty()) trial.why = why;
      trial.is_chosen |= what == "chosen";
    }
    if (text_at(event, "what") == "search_over") ++search;
  }
  if (trials.empty()) return {};
  page::HtmlTable table({{"Search", true},
                         {"Trial", true},
                         {"Seen at step", true},
                         {"Setting"},
                         {"Epochs", true},
                         {"Loss", true},
                         {"State"},
                         {"Why"}},
                        "tuning");
  for (const auto& [key, t] : trials) {
    table.row({std::to_string(key.first), std::to_string(key.second),
               page::with_thousands(static_cast<double>(t.first_step)), t.setting,
               as_number(t.epochs), std::isfinite(t.loss) ? as_number(t.loss) : "", t.state, t.why},
              t.is_chosen             ? "best"
              : t.state == "diverged" ? "bad"
                                      : "");
  }
  return table.html();
}

}  // namespace ductile::run::report
