// The graph of a job's model, measured; the worker, which links torch, runs it.
#include "ductile/cli/commands.h"
#include "ductile/cli/graph_file.h"
#include "ductile/cli/own_plan.h"

namespace ductile::cli {

ExitCode profile(const ProfileCommand& command, Context& context) {
  JobConfig config;
  config.read(command.job, context.environment);
  config.make_paths_absolute();
  if (command.out) check_graph_file(*command.out);
  const auto graph = measured_graph(config, command.shares, command.rounds,
                                    config.job.train.threads, context.console);
  if (!graph) return kInterrupted;
  put_graph(context.console, *graph, command.out, static_cast<double>(config.job.train.batch_size));
  return kDone;
}

}  // namespace ductile::cli
