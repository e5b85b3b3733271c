// The graph of a job's model, measured; the worker, which links torch, runs it.
#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/base/machine.h"
#include "ductile/base/paths.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/graph_file.h"
#include "ductile/cli/own_plan.h"
#include "ductile/cli/this_machine.h"

namespace ductile::cli {
namespace {

fs::path resolved(const fs::path& file) { return fs::weakly_canonical(fs::absolute(file)); }

}  // namespace

ExitCode profile(const ProfileCommand& command, Context& context) {
  JobConfig config;
  config.read(command.job, context.environment);
  config.make_paths_absolute();
  if (command.out) check_graph_file(*command.out);
  int64_t threads = config.job.train.threads;
  if (command.devices) {
    if (kind_of(*command.devices) != FileKind::none) {
      fail(ErrorCode::conflict,
           "--devices {}: is there already, and is to be written; name a new file, or leave it out",
           command.devices->string());
    }
    if (const fs::path folder = fs::absolute(*command.devices).parent_path(); !is_folder(folder)) {
      fail(ErrorCode::not_found,
           "--devices {}: there is no folder {}; make it, or name another file",
           command.devices->string(), folder.string());
    }
    if (command.out && resolved(*command.out) == resolved(*command.devices)) {
      fail(ErrorCode::invalid_argument, "-o {}: is the file of --devices, too; name another one",
           command.out->string());
    }
    threads = std::max<int64_t>(1, threads);  // a worker on each core, unless more are asked for
  }
  const auto graph =
      measured_graph(config, command.shares, command.rounds, threads, context.console);
  if (!graph) return kInterrupted;
  if (command.devices) {
    const int64_t devices = std::max<int64_t>(1, cpu_share().usable() / threads);
    write_file_atomic(*command.devices, describe_machine(devices));
  }
  put_graph(context.console, *graph, command.out, static_cast<double>(config.job.train.batch_size),
            command.shares);
  return kDone;
}

}  // namespace ductile::cli
