#include <cstdlib>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/export.h"
#include "ductile/ckpt/inspect.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/weights_import.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/run/checkpoints.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

// The checkpoint asked for: that of --step, else the newest sound one.
ckpt::Checkpoint open_checkpoint(const CkptCommand& command, Console& console) {
  std::vector<std::string> refused;
  ckpt::Checkpoint found =
      ckpt::open_checkpoint(run::checkpoints_of(command.run), command.step, refused);
  for (const std::string& why : refused) console.say("skipped {}", why);
  return found;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

}  // namespace

ExitCode ckpt_list(const CkptCommand& command, Context& context) {
  const auto found = ckpt::list(run::checkpoints_of(command.run));
  if (command.json) {
    context.console.print("{}\n", dump_json(ckpt::to_json(found), 2));
    return kDone;
  }
  std::vector<std::vector<std::string>> rows = {{"STEP", "SIZE", "TENSORS", "CHUNKS", "STATE"}};
  for (const auto& c : found) {
    rows.push_back({std::to_string(c.step), page::as_bytes(static_cast<double>(c.total_bytes)),
                    std::to_string(c.num_tensors), std::to_string(c.num_chunks),
                    c.error.empty() ? "ok" : "refused: " + c.error});
  }
  context.console.print("{}", page::table(rows));
  return kDone;
}

ExitCode ckpt_show(const CkptCommand& command, Context& context) {
  const ckpt::Checkpoint checkpoint = open_checkpoint(command, context.console);
  if (command.json) {
    context.console.print("{}\n", dump_json(ckpt::to_json(checkpoint), 2));
    return kDone;
  }
  context.console.print(
      "step {}, digest {}, {} in {} tensors\n\n", checkpoint.step(), ckpt::state_digest(checkpoint),
      page::as_bytes(static_cast<double>(checkpoint.total_bytes())), checkpoint.tensors().size());
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "TYPE", "SHAPE", "SIZE"}};
  for (const auto& t : checkpoint.tensors()) {
    rows.push_back({t.name, std::string(to_string(t.dtype)), shape_text(t.shape),
                    page::as_bytes(static_cast<double>(t.num_bytes))});
  }
  context.console.print("{}", page::table(rows));
  return kDone;
}

ExitCode ckpt_verify(const CkptCommand& command, Context& context) {
  const fs::path folder = run::checkpoints_of(command.run);
  const ckpt::VerifyResult result = ckpt::verify(folder);
  if (command.json) {
    context.console.print("{}\n", dump_json(ckpt::to_json(result), 2));
  } else {
    for (const int64_t step : result.good) context.console.print("step {}: good\n", step);
    for (const std::string& refused : result.refused)
      context.console.print("{}: refused\n", refused);
    context.console.print("{} chunks, {} read\n", result.num_chunks,
                          page::as_bytes(static_cast<double>(result.chunk_bytes)));
  }
  return result.ok() ? kDone : kFailed;
}

// The weights to evaluate, where the optimiser of the run names others than those it trains: for
// each parameter the sum of these sections of the checkpoint, each times a factor.
ckpt::ExportSum evaluated_weights(const ckpt::Checkpoint& checkpoint) {
  const Json terms = checkpoint.state().value("evaluated", Json::object());
  if (terms.empty()) return {};
  return [&checkpoint, terms](std::string_view name) {
    std::vector<ckpt::ExportTerm> sum;
    if (!name.starts_with("model/")) return sum;
    for (const auto& [section, factor] : terms.items()) {
      sum.push_back({section + std::string(name.substr(name.find('/'))), factor.get<double>()});
      if (checkpoint.find(sum.back().tensor) == nullptr) return std::vector<ckpt::ExportTerm>();
    }
    return sum;
  };
}

// Whether it has averages of weights that their optimiser displaces: the statistics beside them are
// averages of the displaced ones', and an evaluation computes others.
bool averages_of_displaced(const ckpt::Checkpoint& checkpoint) {
  const Json job = checkpoint.state().value("job", Json::object());
  const Json rule = job.value("optimizer", Json::object()).value("name", Json());
  const bool displaces = rule == "schedule_free" || rule == "neumann";
  return displaces && std::ranges::any_of(checkpoint.tensors(), [](const ckpt::TensorInfo& t) {
           return t.name.starts_with("average/");
         });
}

ExitCode ckpt_export(const CkptCommand& command, Context& context) {
  const ckpt::Checkpoint checkpoint = open_checkpoint(command, context.console);
  // The trainer names a run's tensors by section; what is deployed are the moving averages where
  // there are any, and the plain weights and buffers else.
  const auto rename = [&](std::string_view name) -> std::string {
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos) return "";
    const std::string_view section = name.substr(0, slash);
    const std::string plain(name.substr(slash + 1));
    if (section == "average") return plain;
    if (section == "model" && checkpoint.find("average/" + plain) == nullptr) return plain;
    return "";
  };
  std::error_code error;
  if (fs::is_directory(command.output, error)) {
    fail(ErrorCode::invalid_argument, "--output {}: is a folder; name a file, for example {}",
         command.output.string(), (command.output / "model.safetensors").string());
  }
  const ckpt::ExportSum sum = evaluated_weights(checkpoint);
  ckpt::export_safetensors(checkpoint, rename, command.output, sum);
  const bool statistics = std::ranges::any_of(checkpoint.tensors(), [](const ckpt::TensorInfo& t) {
    return t.name.starts_with("model/") && t.name.ends_with("running_mean");
  });
  if (statistics && (sum || averages_of_displaced(checkpoint))) {
    context.console.say(
        "warning: the optimiser of this run trains other weights than it evaluates; the running "
        "statistics in this file are those of the trained ones, or their average. "
        "model.safetensors in the run's "
        "folder, written when the run ends, has both as they were evaluated");
  }
  const auto bytes = fs::file_size(command.output, error);
  if (command.json) {
    const Json all = {{"step", checkpoint.step()},
                      {"file", command.output.string()},
                      {"bytes", error ? Json(nullptr) : Json(bytes)}};
    context.console.print("{}\n", dump_json(all, 2));
  } else {
    context.console.say("step {} written to {}", checkpoint.step(), command.output.string());
  }
  return kDone;
}

ExitCode ckpt_import(const CkptCommand& command, Context& context) {
  const char* const named = std::getenv("DUCTILE_PYTHON__INTERPRETER");
  const std::string python = command.python.empty() && named != nullptr ? named : command.python;
  const ckpt::Imported result =
      import_weights(command.files, {command.prefix, command.key, python}, command.output);
  if (command.json) {
    const Json all = {{"file", command.output.string()},
                      {"tensors", result.tensors},
                      {"values", result.values},
                      {"converted", result.converted},
                      {"left_out", result.left_out}};
    context.console.print("{}\n", dump_json(all, 2));
    return kDone;
  }
  context.console.say("{} tensors with {} values written to {}", result.tensors,
                      page::with_thousands(static_cast<double>(result.values)),
                      command.output.string());
  if (result.left_out > 0)
    context.console.say("{} tensors whose names do not begin with '{}' were left out",
                        result.left_out, command.prefix);
  return kDone;
}

}  // namespace ductile::cli
