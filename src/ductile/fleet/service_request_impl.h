#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/cluster/client.h"

// What the commands that ask a service share.
namespace ductile::cli {

// The job's path in the service's interface.
std::string path_of(const std::string& job, const char* rest = "");

// Runs `ask` if a service answers, for its exit code; else says how to start one.
ExitCode ask_service(const ServiceCommand& command, Context& context,
                     const std::function<ExitCode(const cluster::Client&)>& ask);
// The same of what either throws or is done.
ExitCode with_service(const ServiceCommand& command, Context& context,
                      const std::function<void(const cluster::Client&)>& ask);

// Does it for each job, also where it fails for another one; of several jobs each trouble is said
// on a line of its own, and the exit code is that of the first one. One job alone fails as any
// command does, by throwing. Under --json what `act` gives is printed: of several jobs a list, in
// which one that failed is {"job", "error"}.
ExitCode for_each_job(const std::vector<std::string>& jobs, bool json, Console& console,
                      const std::function<nlohmann::ordered_json(const std::string& job)>& act);

// Until the service's job has ended, also while the service is away. The exit code is 0 if it has
// finished, that of a command that ended by itself, else kJobFailed. Ctrl-C ends this program and
// not the job, and says so.
ExitCode await_job(const cluster::Client& client, int64_t id, bool json, Console& console);

// How many devices it holds; empty for none.
std::string held_text(const nlohmann::ordered_json& job);

// What `ductile why` and `ductile status` show of a service's job.
std::string job_table(const nlohmann::ordered_json& job);

}  // namespace ductile::cli
