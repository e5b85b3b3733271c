// What a report shows of the figures that a run ended with.
#include <algorithm>
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
using page::as_percent;
using page::plural;
using page::with_thousands;

constexpr size_t kClassRows = 50;  // the worst ones; the rest is in events.jsonl

// The object at a key; an empty one where there is none, or something else.
const json& part(const json& of, const char* key) {
  static const json kNothing = json::object();
  const auto at = of.find(key);
  return at != of.end() && at->is_object() ? *at : kNothing;
}

std::string right_of(const json& of) {
  return fmt::format("{} of {} right", with_thousands(number_at(of, "correct")),
                     plural(number_at(of, "samples"), "sample"));
}

}  // namespace

void add_work(std::vector<page::Tile>& tiles, const json& figures) {
  const double forward = number_at(figures, "samples_forward"),
               backward = number_at(figures, "samples");
  if (!std::isfinite(forward) || !std::isfinite(backward)) return;
  const std::string samples = fmt::format("{} forward, {} back-propagated",
                                          plural(forward, "sample"), with_thousands(backward));
  const double flops = number_at(figures, "flops");
  if (flops > 0) {
    tiles.push_back({"Floating-point operations", fmt::format("{:.3g}", flops), samples});
  } else {
    tiles.push_back({"Samples", with_thousands(backward), samples});
  }
}

void add_classes(std::vector<page::Tile>& tiles, const json& figures) {
  const json& result = part(figures, "final");
  if (const json& worst = part(result, "worst_class");
      std::isfinite(number_at(worst, "accuracy"))) {
    tiles.push_back({"Worst class", as_percent(number_at(worst, "accuracy")),
                     fmt::format("{}; {}", class_name(worst), right_of(worst))});
  }
  if (const double error = number_at(result, "calibration_error"); std::isfinite(error)) {
    tiles.push_back({"Calibration error", as_percent(error),
                     fmt::format("how far probabilities are from shares; Brier score {}",
                                 as_number(number_at(result, "brier")))});
  }
}

void add_noise(std::vector<page::Tile>& tiles, const json& figures) {
  if (!figures.contains("updates")) return;
  const json& noise = part(figures, "noise");
  const double scale = number_at(noise, "scale");
  if (std::isnan(scale)) return;
  tiles.push_back({"Gradient noise scale",
                   std::isfinite(scale) ? plural(std::round(scale), "sample") : "not known",
                   "batches far below it are cheap to enlarge, far above it they waste samples"});
}

std::string classes_html(const json& figures) {
  const json& result = part(figures, "final");
  const auto found = result.find("classes");
  if (found == result.end() || !found->is_array()) return "";
  std::vector<json> classes;
  for (const json& c : *found) {
    if (c.is_object() && std::isfinite(number_at(c, "accuracy"))) classes.push_back(c);
  }
  if (classes.empty()) return "";
  std::ranges::stable_sort(classes, {}, [](const json& c) { return number_at(c, "accuracy"); });
  page::HtmlTable table({{"Class"}, {"Samples", true}, {"Right", true}, {"Accuracy"}}, "classes");
  for (size_t i = 0; i < std::min(classes.size(), kClassRows); ++i) {
    const json& c = classes[i];
    const double accuracy = number_at(c, "accuracy");
    table.row({class_name(c), with_thousands(number_at(c, "samples")),
               with_thousands(number_at(c, "correct")),
               page::Cell::of_markup(page::meter(accuracy, as_percent(accuracy)))});
  }
  std::string out = table.html();
  if (classes.size() > kClassRows)
    out += fmt::format(
        "<p class=\"empty\">The worst {} of {} classes; all of them are in "
        "events.jsonl.</p>\n",
        kClassRows, classes.size());
  return out;
}

}  // namespace ductile::run::report
