// A trained model, answering over HTTP; workers, which link torch, compute and listen.
#include <algorithm>
#include <csignal>
#include <optional>

#include <sys/signalfd.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/machine.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/held_signals.h"
#include "ductile/cli/job_config.h"
#include "ductile/cli/trust.h"
#include "ductile/cli/worker_process.h"
#include "ductile/net/loop.h"
#include "ductile/process/file_limit.h"
#include "ductile/process/worker.h"
#include "ductile/run/folder.h"
#include "ductile/serving/replicas.h"
#include "ductile/serving/router.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

void tell_address(Console& console, const std::string& address, const std::string& name) {
  console.print("http://{}/v2/models/{}\n", address, name);
  console.out().flush();
}

// One worker, which listens itself.
void serve_alone(const fs::path& run, const json& request, int64_t threads, Console& console) {
  ask_worker({.arguments = {"--run", run.string(), "--serve", dump_json_exactly(request, "--name")},
              .threads = threads,
              .on_row = [&](const json& row) {
                if (row.contains("told"))
                  return console.say("{}", row.at("told").get<std::string>());
                tell_address(console, row.at("address"), row.at("name"));
                console.say("the weights are those of step {}; Ctrl-C finishes what was accepted",
                            row.at("version").get<int64_t>());
              }});
}

// Several workers behind one address.
void serve_replicas(const fs::path& run, json request, int64_t threads, int64_t count,
                    Console& console) {
  process::raise_file_limit();  // each request in flight has two descriptors
  net::Loop loop;
  HeldSignals held;
  serving::RouterOptions options;
  options.http.at = {request.at("host"), request.at("port")};
  if (request.at("follow_ms") == 0) options.model = request.at("name").get<std::string>();
  serving::Router router(loop, options);
  request["host"] = "127.0.0.1";
  request["port"] = 0;
  const serving::ReplicaCommand command{
      process::find_worker(),
      {"--run", run.string(), "--serve", dump_json_exactly(request, "--name")},
      process::worker_environment(threads),
      "/dev/null"};
  std::optional<Error> failed;
  const std::string name = request.at("name");
  serving::Replicas replicas(loop, router, command,
                             {.tell = [&](const std::string& line) { console.say("{}", line); },
                              .on_failed =
                                  [&](const Error& error) {
                                    failed = error;
                                    loop.stop();
                                  },
                              .on_ready =
                                  [&] {
                                    tell_address(console, router.address().to_string(), name);
                                    console.say("{} replicas; Ctrl-C finishes what was accepted",
                                                count);
                                  }});
  EndRequests ending;
  const auto watch = loop.watch(held.fd(), net::Interest::read, [&](net::Ready) {
    signalfd_siginfo info;
    while (read(held.fd(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGTSTP) raise(SIGSTOP);
      if (info.ssi_signo != SIGINT && info.ssi_signo != SIGTERM && info.ssi_signo != SIGHUP)
        continue;
      const bool is_first = !ending.any();
      if (ending.repeats()) return loop.stop();  // what was accepted is not answered
      if (!is_first) continue;
      console.say("finishing what was accepted; once more ends at once");
      router.drain([&] { replicas.end([&] { loop.stop(); }); });
    }
  });
  replicas.resize(count);
  loop.run();
  if (failed) throw Error(*failed);
}

}  // namespace

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
  int64_t threads = command.threads > 0 ? command.threads : config.job.train.threads;
  if (command.replicas == 1) {
    serve_alone(folder.path(), request, threads, console);
  } else {
    if (threads == 0) threads = std::max<int64_t>(1, cpu_share().usable() / command.replicas);
    serve_replicas(folder.path(), request, threads, command.replicas, console);
  }
  return kDone;
}

}  // namespace ductile::cli
