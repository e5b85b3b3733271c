#pragma once

#include <functional>
#include <string>

#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/cluster/client.h"

// What the commands that ask a service share.
namespace ductile::cli {

// The job's path in the service's interface.
std::string path_of(const std::string& job, const char* rest = "");

// Runs `ask` if a service answers; else says how to start one.
ExitCode with_service(const ServiceCommand& command, Context& context,
                      const std::function<void(const cluster::Client&)>& ask);

// How many devices it holds; empty for none.
std::string held_text(const nlohmann::ordered_json& job);

// What `ductile why` and `ductile status` show of a service's job.
std::string job_table(const nlohmann::ordered_json& job);

}  // namespace ductile::cli
