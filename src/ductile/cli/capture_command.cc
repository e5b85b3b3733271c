// The graph of a Python model: its own interpreter runs it, operator by operator.
#include <string>
#include <vector>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/graph_file.h"
#include "ductile/cli/python_job.h"
#include "ductile/cli/worker_process.h"
#include "ductile/page/numbers.h"
#include "ductile/page/progress_bar.h"
#include "ductile/process/worker.h"
#include "ductile/spec/job.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

// The options that say which Python it is, and how many threads it has, as for `ductile train`.
spec::JobOptions asked_of(const JobRequest& request, const char* const* environment) {
  spec::JobOptions asked;
  OptionSet options(asked);
  if (environment != nullptr) options.read_environment(environment);
  for (const std::string& assignment : request.assignments) options.set(assignment);
  for (const OptionField& field : options.fields()) {
    if (field.origin.is_default() || field.path == "python.interpreter" ||
        field.path == "train.threads" || field.origin.text != "--set")
      continue;
    fail(ErrorCode::invalid_argument,
         "--set {}: capture takes python.interpreter and train.threads; what the job itself needs "
         "stands in its class, or among its own arguments behind --",
         field.path);
  }
  return asked;
}

}  // namespace

ExitCode capture(const CaptureCommand& command, Context& context) {
  Console& console = context.console;
  const fs::path word = command.job.file.value_or("");
  const auto object = python_object(word);
  if (!object)
    fail(ErrorCode::invalid_argument,
         "capture: {} names no Python class; give FILE.py:CLASS, or MODULE:CLASS. The operators of "
         "a job file's model are measured by ductile profile",
         word.string());
  // FILE.py:CLASS; of MODULE:CLASS its Python knows where it is.
  const fs::path script = object->substr(0, object->rfind(':'));
  if (script.extension() == ".py" && kind_of(script) == FileKind::none)
    fail(ErrorCode::invalid_argument, "capture: {}: there is no such file", script.string());
  const spec::JobOptions asked = asked_of(command.job, context.environment);
  if (command.out) check_graph_file(*command.out);
  if (command.model && command.no_check) {
    fail(ErrorCode::invalid_argument,
         "--model excludes --no-check: operators that are trained have to be those of the model");
  }
  const json options = {
      {"leaf", command.leaves},
      {"inputs", command.inputs},
      {"batch", command.batch ? json(*command.batch) : json()},
      {"shares", command.shares},
      {"rounds", command.rounds},
      {"model", command.model ? json(fs::absolute(*command.model).string()) : json()},
      {"times", !command.no_times},
      {"check", !command.no_check}};
  page::ProgressBar bar(STDERR_FILENO);
  WorkerQuestion question;
  question.program = process::python_worker(process::find_worker());
  question.arguments = {
      "--interpreter", find_interpreter(asked.python.interpreter),
      "--capture",     *object,
      "--options",     dump_json(options),
      "--args",        dump_json(json(command.job.arguments.value_or(std::vector<std::string>())))};
  question.threads = asked.train.threads > 0 ? asked.train.threads : 1;
  question.on_row = [&](const json& row) {
    if (!console.err_terminal || console.verbosity < 0) return;
    const double share = row.at("share");
    bar.show({.parts = {{"capture"}, {page::as_percent(share)}}, .share = share});
  };
  if (console.err_terminal && console.verbosity >= 0)  // it is imported and recorded first
    bar.show({.parts = {{"capture"}, {page::as_percent(0)}}});
  const auto told = ask_worker(question);
  bar.clear();
  if (!told) return kInterrupted;
  for (const json& note : told->at("notes")) console.say("capture: {}.", note.get<std::string>());
  put_graph(console, told->at("graph"), command.out, told->at("samples").get<double>(),
            command.shares);
  return kDone;
}

}  // namespace ductile::cli
