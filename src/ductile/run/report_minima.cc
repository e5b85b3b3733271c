// What a report shows of the minima that `ductile minima` measured.
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
using page::with_thousands;

const json& part(const json& of, const char* key, json::value_t type) {
  static const json kNothing;
  const auto at = of.find(key);
  return at != of.end() && at->type() == type ? *at : kNothing;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "";
  return std::isfinite(value) ? as_number(value) : "not finite";
}

// "0.001: 3.21": the side of the box and the measure in percent.
std::string sharpness_text(const json& line) {
  std::string out;
  for (const json& one : part(line, "sharpness", json::value_t::array)) {
    if (!one.is_object()) continue;
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", as_number(number_at(one, "epsilon")),
                       number_text(number_at(one, "value")));
  }
  if (const double dimensions = number_at(line, "subspace"); dimensions > 0)
    out += fmt::format(" in {} dimensions", with_thousands(dimensions));
  return out;
}

std::string steps_text(const json& line) {
  const double steps = number_at(line, "steps");
  return std::isfinite(steps) ? with_thousands(steps) : "";
}

// With what Lanczos' recurrence leaves open, or what half the step changes, if that is more.
std::string eigenvalue_text(const json& hessian) {
  if (!hessian.is_object()) return "";
  const double largest = number_at(hessian, "largest"), check = number_at(hessian, "check");
  double error = number_at(hessian, "residual");
  if (std::isfinite(check)) error = std::max(error, std::abs(check - largest));
  return fmt::format("{} \u00b1 {}{}", number_text(largest), number_text(error),
                     hessian.value("converged", json(true)) == false ? ", not converged" : "");
}

std::string samples_text(const json& line) {
  return fmt::format("{} of {}", with_thousands(number_at(line, "samples")),
                     with_thousands(number_at(line, "train_size")));
}

// Numbers, and null for whatever is none.
json numbers_of(const json& values) {
  json out = json::array();
  for (const json& value : values) {
    double number = NAN;
    number_from_json(value, number);
    out.push_back(std::isfinite(number) ? json(number) : json());
  }
  return out;
}

bool all_numbers(const json& values) {
  for (const json& value : values) {
    if (!value.is_number()) return false;
  }
  return !values.empty();
}

}  // namespace

std::string minima_html(const std::vector<json>& minima) {
  if (minima.empty()) return "";
  page::HtmlTable table({{"Step", true},
                         {"Training loss", true},
                         {"Gradient's norm", true},
                         {"Box: sharpness in %"},
                         {"Steps of an ascent", true},
                         {"Largest eigenvalue"},
                         {"Smallest found", true},
                         {"Samples", true}},
                        "minima");
  for (const json& line : minima) {
    const json& hessian = part(line, "hessian", json::value_t::object);
    table.row({with_thousands(number_at(line, "step")), number_text(number_at(line, "loss")),
               number_text(number_at(line, "gradient_norm")), sharpness_text(line),
               steps_text(line), eigenvalue_text(hessian),
               hessian.is_object() ? number_text(number_at(hessian, "smallest")) : "",
               samples_text(line)});
  }
  return table.html() +
         "<p class=\"empty\">Sharpness: how much the loss can rise, relative to 1 + loss, in a box "
         "around the weights (Keskar's measure, a lower bound: more steps of an ascent find more). "
         "Eigenvalues: of the Hessian of the "
         "training loss in evaluation mode.</p>\n<div id=\"slices\" class=\"panels\"></div>\n";
}

json slices_data(const std::vector<json>& minima) {
  for (auto line = minima.rbegin(); line != minima.rend(); ++line) {
    const json& slices = part(*line, "slices", json::value_t::object);
    if (!slices.is_object()) continue;
    const json& places = part(slices, "places", json::value_t::array);
    const json& rows = part(slices, "losses", json::value_t::array);
    if (!places.is_array() || !rows.is_array() || !all_numbers(places)) continue;
    json losses = json::array();
    for (const json& row : rows) {
      if (row.is_array() && row.size() == places.size()) losses.push_back(numbers_of(row));
    }
    const bool plane = slices.value("kind", json()) == "2d";
    if (losses.empty() || (plane && losses.size() != places.size())) continue;
    const double step = number_at(*line, "step");
    return {{"plane", plane},
            {"step", std::isfinite(step) ? json(step) : json()},
            {"places", places},
            {"losses", losses}};
  }
  return nullptr;
}

}  // namespace ductile::run::report
