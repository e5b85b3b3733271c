#include <algorithm>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/page/terminal.h"

namespace ductile::cli {
namespace {

constexpr std::string_view kReferenceHead =
    "# Options of a job\n"
    "\n"
    "Written by `ductile config --markdown`; do not edit. Each key may stand in the job file\n"
    "(`[train]` and `epochs = 5`), in the environment (`DUCTILE_TRAIN__EPOCHS=5`) or on the "
    "command\n"
    "line (`--set train.epochs=5`); a later one of these outranks an earlier one.\n"
    "\n";

nlohmann::json value_json(const OptionField& field) {
  return std::visit([](auto* value) { return nlohmann::json(*value); }, field.ref);
}

bool differs_from_default(const OptionField& field) {
  return to_toml(field.ref) != to_toml(field.default_value);
}

// The resolved file with each value's origin as a comment: valid TOML that can be used again.
std::string commented_toml(const OptionSet& options, bool changed) {
  struct Line {
    std::string text, origin;
  };
  std::vector<Line> lines;
  std::string section;
  for (const OptionField& field : options.fields()) {
    if (changed && !differs_from_default(field)) continue;
    const size_t dot = field.path.rfind('.');
    const std::string prefix = dot == std::string::npos ? "" : field.path.substr(0, dot);
    const std::string name = dot == std::string::npos ? field.path : field.path.substr(dot + 1);
    if (prefix != section) {
      if (!lines.empty()) lines.push_back({});
      lines.push_back({"[" + prefix + "]", ""});
      section = prefix;
    }
    lines.push_back({name + " = " + to_toml(field.ref), field.origin.text});
  }
  size_t width = 0;
  for (const Line& line : lines) {
    if (!line.origin.empty() && line.text.size() <= 40) width = std::max(width, line.text.size());
  }
  std::string text;
  for (const Line& line : lines) {
    text +=
        line.origin.empty() ? line.text : fmt::format("{:{}}  # {}", line.text, width, line.origin);
    text += '\n';
  }
  return text;
}

}  // namespace

ExitCode config(const ConfigCommand& command, Context& context) {
  Console& console = context.console;
  JobConfig job;
  if (command.schema) {
    console.print("{}\n", dump_json(job.options.json_schema("Ductile job"), 2));
    return kDone;
  }
  if (command.markdown) {
    console.print("{}{}", kReferenceHead, job.options.markdown());
    return kDone;
  }
  job.read(command.job, context.environment);
  job.warn(console);
  if (command.json) {
    nlohmann::ordered_json values = nlohmann::ordered_json::object();
    for (const OptionField& field : job.options.fields()) {
      if (command.changed && !differs_from_default(field)) continue;
      values[field.path] = {{"value", value_json(field)}, {"origin", field.origin.text}};
    }
    console.print("{}\n", dump_json(values, 2));
  } else if (command.origin) {
    std::vector<std::vector<std::string>> rows = {{"KEY", "VALUE", "ORIGIN"}};
    for (const OptionField& field : job.options.fields()) {
      if (command.changed && !differs_from_default(field)) continue;
      rows.push_back({field.path, to_toml(field.ref), field.origin.text});
    }
    console.print("{}", page::table(rows));
  } else {
    console.print("{}", commented_toml(job.options, command.changed));
  }
  return kDone;
}

}  // namespace ductile::cli
