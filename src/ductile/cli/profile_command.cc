// The graph of a job's model, measured; the worker, which links torch, runs it.
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/graph_file.h"
#include "ductile/cli/worker_process.h"
#include "ductile/page/numbers.h"
#include "ductile/page/progress_bar.h"
#include "ductile/run/folder.h"

namespace ductile::cli {

using nlohmann::json;

ExitCode profile(const ProfileCommand& command, Context& context) {
  Console& console = context.console;
  JobConfig config;
  config.read(command.job, context.environment);
  if (!config.job.python.object.empty())
    fail(ErrorCode::invalid_argument,
         "{}: the operators of a Python job's model are found by its own Python: ductile capture",
         config.job.python.object);
  config.make_paths_absolute();
  if (command.out) check_graph_file(*command.out);
  const TempFolder temporary("ductile-profile");
  const auto folder = run::RunFolder::create_at(temporary.path() / "run", config.options.to_toml());
  page::ProgressBar bar(STDERR_FILENO);
  const json options = {{"shares", command.shares}, {"rounds", command.rounds}};
  const auto graph =
      ask_worker({.arguments = {"--run", folder.path().string(), "--profile", dump_json(options)},
                  .threads = config.job.train.threads,
                  .on_row = [&](const json& row) {
                    if (!console.err_terminal || console.verbosity < 0) return;
                    const double share = row.at("share");
                    bar.show({.parts = {{"profile"}, {page::as_percent(share)}}, .share = share});
                  }});
  bar.clear();
  if (!graph) return kInterrupted;
  put_graph(console, *graph, command.out, static_cast<double>(config.job.train.batch_size));
  return kDone;
}

}  // namespace ductile::cli
