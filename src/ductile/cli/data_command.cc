#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/commands.h"
#include "ductile/data/convert.h"
#include "ductile/data/data_format.h"
#include "ductile/data/inspect.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kBadShown = 20;  // bad samples listed for people; --json has all

// The data options that `path` means: those of a job file, or the data itself.
spec::DataOptions data_options(const fs::path& path, const std::vector<std::string>& assignments,
                               Context& context) {
  JobConfig config;
  const bool job_file = path.extension() == ".toml" && is_file(path);
  JobRequest request;
  if (job_file) {
    request.file = path;
  } else {
    const bool told = std::any_of(assignments.begin(), assignments.end(),
                                  [](const auto& a) { return a.starts_with("data.format="); });
    if (!told) request.assignments.push_back("data.format=" + data::guess_data_format(path));
    request.assignments.push_back("data.path=" + path.string());
  }
  request.assignments.insert(request.assignments.end(), assignments.begin(), assignments.end());
  config.read_data(request, context.environment);
  return config.job.data;
}

std::vector<data::Split> splits(const std::string& name) {
  if (name == "train") return {data::Split::train};
  if (name == "test") return {data::Split::test};
  return {data::Split::train, data::Split::test};
}

std::string_view name_of(data::Split split) {
  return split == data::Split::train ? "train" : "test";
}

// Calls `use` for each split asked for. Where both are, a missing held-out part is only mentioned.
template <class Use>
void for_each_split(const std::string& asked, Context& context, Use&& use) {
  for (const data::Split split : splits(asked)) {
    try {
      use(split);
    } catch (const Error& e) {
      if (split == data::Split::train || asked == "test" || e.code() != ErrorCode::not_found) throw;
      context.console.say("no held-out data: {}", e.what());
    }
  }
}

std::string range_text(int64_t low, int64_t high) {
  return low == high ? std::to_string(low) : fmt::format("{}-{}", low, high);
}

std::string numbers_text(const std::vector<double>& values) {
  std::string text;
  for (const double v : values) text += fmt::format("{}{:.4f}", text.empty() ? "" : ", ", v);
  return text;
}

void print_bad(Console& console, const std::vector<data::BadItem>& bad) {
  if (bad.empty()) return;
  console.print("\n{} bad:\n", bad.size());
  for (size_t i = 0; i < std::min(bad.size(), kBadShown); ++i)
    console.print("  {}: {}\n", bad[i].where, bad[i].what);
  if (bad.size() > kBadShown)
    console.print("  ... and {} more; --json lists all\n", bad.size() - kBadShown);
}

void print_result(Console& console, const data::InspectResult& result) {
  const data::DatasetInfo& info = result.info;
  std::vector<std::vector<std::string>> rows = {
      {"split", std::string(name_of(result.split))},
      {"format", info.format},
      {"samples", page::with_thousands(static_cast<double>(result.good))},
      {"stored", page::as_bytes(static_cast<double>(result.stored_bytes))}};
  if (info.tokens) {
    rows.push_back({"vocabulary", page::with_thousands(static_cast<double>(info.num_classes))});
    rows.push_back({"tokens a sample", std::to_string(info.sequence_length)});
  } else if (!info.images()) {
    rows.push_back({"inputs", fmt::format("{}", fmt::join(spec::to_texts(info.inputs), ", "))});
    rows.push_back({"classes", std::to_string(info.num_classes)});
  } else {
    rows.push_back({"shape", fmt::format("{} x {} x {}", info.channels,
                                         range_text(result.min_height, result.max_height),
                                         range_text(result.min_width, result.max_width))});
    rows.push_back({"mean", numbers_text(info.mean)});
    rows.push_back({"std", numbers_text(info.std)});
    rows.push_back({"classes", std::to_string(info.num_classes)});
  }
  std::string encodings;
  for (const auto& [name, count] : result.encodings)
    encodings += fmt::format("{}{} {}", encodings.empty() ? "" : ", ", count, name);
  rows.push_back({"encodings", encodings});
  console.print("{}", page::table(rows));
  if (!result.class_counts.empty()) {
    rows = {{"CLASS", "NAME", "SAMPLES"}};
    for (size_t c = 0; c < result.class_counts.size(); ++c) {
      rows.push_back({std::to_string(c), c < info.class_names.size() ? info.class_names[c] : "",
                      std::to_string(result.class_counts[c])});
    }
    console.print("\n{}", page::table(rows));
  }
  print_bad(console, result.bad);
}

}  // namespace

ExitCode data_inspect(const DataInspectCommand& command, Context& context) {
  const spec::DataOptions options = data_options(command.path, command.assignments, context);
  Json all = Json::array();
  bool bad = false, first = true;
  for_each_split(command.split, context, [&](data::Split split) {
    const data::InspectResult result = data::inspect(options, split);
    bad = bad || !result.bad.empty();
    if (command.json) {
      all.push_back(Json(data::to_json(result)));
      return;
    }
    if (!first) context.console.print("\n");
    first = false;
    print_result(context.console, result);
  });
  if (command.json) context.console.print("{}\n", dump_json(all, 2));
  return bad ? kFailed : kDone;
}

ExitCode data_convert(const DataConvertCommand& command, Context& context) {
  const spec::DataOptions options = data_options(command.source, command.assignments, context);
  data::ConvertOptions to;
  to.to = command.to;
  to.out = command.destination.string();
  to.shard_bytes = command.shard_mb << 20;
  to.raw = command.raw;
  to.short_side = command.short_side;
  Json all = Json::array();
  for_each_split(command.split, context, [&](data::Split split) {
    const data::ConvertResult result = data::convert(options, split, to);
    if (command.json) {
      Json one = {{"split", name_of(split)}};
      one.update(Json(data::to_json(result)));
      all.push_back(one);
      return;
    }
    context.console.print("{}: {} samples, {} in {} files\n", name_of(split), result.samples,
                          page::as_bytes(static_cast<double>(result.bytes)), result.files.size());
    print_bad(context.console, result.bad);
  });
  if (command.json) context.console.print("{}\n", dump_json(all, 2));
  return kDone;
}

}  // namespace ductile::cli
