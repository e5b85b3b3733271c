#include "ductile/cli/run_summary.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

// What the trials of a tuner inside the run cost: "9 trials: 24,576 samples, 12.0 s, 21.0 s of core
// time", as far as it is known; empty where there were none.
std::string tuning_text(const Json& tuning) {
  if (!tuning.contains("trials")) return "";
  std::vector<std::string> parts;
  const auto add = [&](const char* key, auto&& text) {
    if (tuning.contains(key) && tuning[key].is_number())
      parts.push_back(text(tuning[key].get<double>()));
  };
  add("samples", [](double samples) { return page::plural(samples, "sample"); });
  add("wall_seconds", [](double seconds) { return page::as_duration(seconds); });
  add("core_seconds", [](double seconds) { return page::as_duration(seconds) + " of core time"; });
  const std::string trials = page::plural(tuning["trials"].get<double>(), "trial");
  return parts.empty() ? trials : fmt::format("{}: {}", trials, fmt::join(parts, ", "));
}

}  // namespace

void print_summary(Console& console, const Json& done, const run::RunFolder& folder) {
  std::vector<std::vector<std::string>> rows;
  const auto number = [](const Json& from, const char* key) -> std::optional<double> {
    if (!from.is_object() || !from.contains(key) || !from[key].is_number()) return std::nullopt;
    return from[key].get<double>();
  };
  const auto row = [&](const char* name, std::optional<double> value, auto&& text) {
    if (value) rows.push_back({name, text(*value)});
  };
  const Json nothing = Json::object();
  const auto part = [&](const char* key) -> const Json& {
    return done.is_object() && done.contains(key) ? done[key] : nothing;
  };
  if (done.is_object() && done.value("status", "") == "target_reached")
    rows.push_back({"ending", "target reached"});
  row("steps", number(done, "step"), page::with_thousands);
  row("epochs", number(done, "epoch"), page::as_number);
  row("accuracy", number(part("final"), "accuracy"), page::as_percent);
  row("loss", number(part("final"), "loss"), page::as_number);
  row("best accuracy", number(part("best"), "accuracy"), page::as_percent);
  row("samples/s", number(done, "samples_per_second"), page::with_thousands);
  row("time", number(part("cost"), "wall_seconds"), page::as_duration);
  row("core time", number(part("cost"), "core_seconds"), page::as_duration);
  row("energy", number(part("cost"), "energy_joules"),
      [](double joules) { return page::with_thousands(joules) + " J"; });
  if (const std::string text = tuning_text(part("tuning")); !text.empty())
    rows.push_back({"tuning", text});
  const Json& last = part("final");
  if (last.contains("worst_class")) {
    const Json& worst = last["worst_class"];
    const std::string name =
        worst.contains("name") ? worst["name"].get<std::string>() : dump_json(worst["class"]);
    rows.push_back({"worst class", fmt::format("{} with {}", name,
                                               page::as_percent(worst["accuracy"].get<double>()))});
  }
  row("calibration", number(last, "calibration_error"),
      [](double error) { return page::as_percent(error) + " error"; });
  row("noise scale", number(part("noise"), "scale"),
      [](double scale) { return page::plural(std::round(scale), "sample"); });
  rows.push_back({"run", folder.path().string()});
  rows.push_back({"report", folder.report_file().string()});
  console.print("{}", page::table(rows));
}

}  // namespace ductile::cli
