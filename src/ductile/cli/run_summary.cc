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

// What the trials of a tuner inside the run cost, and what the last search kept: "9 trials: 24,576
// samples, 12.0 s, 21.0 s of core time; kept lr 0.0621", as far as it is known; empty where there
// were none.
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
  std::string text =
      parts.empty() ? trials : trials + ": " + fmt::format("{}", fmt::join(parts, ", "));
  if (!tuning.contains("kept") || !tuning["kept"].is_object()) return text;
  std::vector<std::string> kept;
  for (const auto& [name, value] : tuning["kept"].items())
    kept.push_back(name + " " +
                   (value.is_number() ? page::as_setting(value.get<double>()) : dump_json(value)));
  return kept.empty() ? text : fmt::format("{}; kept {}", text, fmt::join(kept, ", "));
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
  // With looks at losses between updates, or trials that were dropped, there are more steps.
  if (const auto updates = number(done, "updates"); updates != number(done, "step"))
    row("updates", updates, page::with_thousands);
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
  row("calibration error", number(last, "calibration_error"), page::as_percent);
  const auto first = number(part("noise"), "batch_size");
  if (const auto batch = number(done, "last_batch"); first && batch != first)
    row("last batch", batch, [](double size) { return page::plural(size, "sample"); });
  row("noise scale", number(part("noise"), "scale"),
      [](double scale) { return page::plural(std::round(scale), "sample"); });
  rows.push_back({"run", folder.path().string()});
  rows.push_back({"report", folder.report_file().string()});
  console.print("{}", page::table(rows));
}

}  // namespace ductile::cli
