#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/json_value.h"
#include "ductile/page/html.h"
#include "ductile/page/numbers.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/report_impl.h"

namespace ductile::run::report {
namespace {

using nlohmann::json;
using page::as_number;

double number_of(const json& value) {
  double out = NAN;
  number_from_json(value, out);
  return out;
}

// "0: 2.31, 1: 2.25, 2: not finite": of each probe, where it is on the way of all updates since the
// last round, in multiples of that way, and its loss.
std::string probes_text(const json& event) {
  const auto probes = event.find("probes");
  if (probes == event.end() || !probes->is_array()) return {};
  std::string out;
  for (const json& probe : *probes) {
    if (!probe.is_array() || probe.size() != 2) continue;
    const double loss = number_of(probe[1]);
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", as_number(number_of(probe[0])),
                       std::isfinite(loss) ? as_number(loss) : "not finite");
  }
  return out;
}

// Over the same multiples; the event has it over multiples times `probed_lr`.
std::string fit_text(const json& event) {
  const auto fit = event.find("fit");
  if (fit == event.end() || !fit->is_array() || fit->size() != 3) return "none";
  const double lr = number_at(event, "probed_lr");
  return fmt::format("{} {:+.4g} a {:+.4g} a\u00b2", as_number(number_of((*fit)[0])),
                     number_of((*fit)[1]) * lr, number_of((*fit)[2]) * lr * lr);
}

std::string minimum_text(const json& event) {
  const double rate = number_at(event, "minimum_lr");
  return std::isfinite(rate) ? as_number(rate) : "none";
}

// Those of the state that the run has: a run goes on from before what was lost, and does it again.
std::vector<const json*> rounds_of(const History& history) {
  std::vector<const json*> out;
  for (const json& event : history.events) {
    const json kind = event.value("kind", json());
    if (kind == "start" || kind == "resume") {
      const double step = number_at(event, "step");
      while (!out.empty() && number_at(*out.back(), "step") > step) out.pop_back();
    } else if (kind == "rate_control" && event.value("what", json()) == "probe_round") {
      out.push_back(&event);
    }
  }
  return out;
}

}  // namespace

std::string probe_rounds_html(const History& history) {
  page::HtmlTable table({{"Step", true},
                         {"Phase"},
                         {"Multiple a: loss there"},
                         {"Parabola through them"},
                         {"Minimum at", true},
                         {"Learning rate", true},
                         {"Why"}},
                        "probes");
  const std::vector<const json*> rounds = rounds_of(history);
  for (const json* const round : rounds) {
    const json& event = *round;
    const auto text = [&](const char* key) {
      const auto at = event.find(key);
      return at != event.end() && at->is_string() ? at->get<std::string>() : std::string();
    };
    table.row({page::with_thousands(number_at(event, "step")), text("phase"), probes_text(event),
               fit_text(event), minimum_text(event), as_number(number_at(event, "lr")),
               text("why")});
  }
  if (rounds.empty()) return {};
  return table.html() +
         "<p class=\"empty\">Each round looks up the loss on the straight way that the updates "
         "since the last round went together: a = 0 is where it began, a = 1 where the weights "
         "are, a = 2 as far again. "
         "The minimum is that of the parabola: its a times the learning rate of the last update. "
         "There is none where it bends down, or rises from the start.</p>\n";
}

}  // namespace ductile::run::report
