// A trained model, answering over HTTP; the worker, which links torch, computes and listens.
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/machine.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/job_config.h"
#include "ductile/cli/trust.h"
#include "ductile/cli/worker_process.h"
#include "ductile/run/folder.h"

namespace ductile::cli {

using nlohmann::json;

ExitCode serve(const ServeCommand& command, Context& context) {
  Console& console = context.console;
  const run::RunFolder folder = run::RunFolder::open(command.run);
  if (!command.trust) require_trusted(folder.path());
  JobConfig config;
  config.read_saved(folder.job_file());
  json request = {{"name", command.name.value_or(run::file_name_of(config.job.name))},
                  {"host", command.host},
                  {"port", command.port},
                  {"threads", command.threads},
                  {"max_batch", command.max_batch},
                  {"max_delay_us", static_cast<int64_t>(command.max_delay * 1000)},
                  {"max_waiting", command.max_waiting},
                  {"follow_ms", command.follow ? 1000 : 0}};
  if (command.checkpoint) request["version"] = *command.checkpoint;
  if (request["name"] != run::file_name_of(request["name"].get<std::string>()))
    fail(ErrorCode::invalid_argument, "--name {}: a model's name has letters, digits, . _ and -",
         *command.name);
  const int64_t threads = command.threads > 0 ? command.threads : config.job.train.threads;
  ask_worker({.arguments = {"--run", folder.path().string(), "--serve",
                            dump_json_exactly(request, "--name")},
              .threads = threads,
              .on_row = [&](const json& row) {
                if (row.contains("told"))
                  return console.say("{}", row.at("told").get<std::string>());
                console.print("http://{}/v2/models/{}\n", row.at("address").get<std::string>(),
                              row.at("name").get<std::string>());
                console.out().flush();
                console.say("the weights are those of step {}; Ctrl-C finishes what was accepted",
                            row.at("version").get<int64_t>());
              }});
  return kDone;
}

}  // namespace ductile::cli
