#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/cluster/client.h"

// What the commands that ask a service share.
namespace ductile::cli {

// The job's path in the service's interface.
std::string path_of(const std::string& job, const char* rest = "");

// Runs a command; where no service answers, now or later, it says how to start one.
ExitCode unless_unreachable(Context& context, const std::function<ExitCode()>& run);

// Runs `ask` with the service that is meant. Throws cluster::Unreachable where none answers.
ExitCode with_service(const ServiceCommand& command, Context& context,
                      const std::function<void(const cluster::Client&)>& ask);

// A service that somebody follows may be away for a while: it is restarted, or busy.
class Absence {
 public:
  // `patience`: seconds without an answer after which nobody waits any more.
  Absence(Console& console, double patience) : console_(console), patience_(patience) {}

  // An answer did not come; for a handler of that error. Says so once; throws it again if it is
  // none that goes by, or has gone on for too long.
  void begin(const Error& error);
  void end();  // an answer came

 private:
  Console& console_;
  const double patience_;
  std::optional<std::chrono::steady_clock::time_point> since_;
};

// How many devices it holds; empty for none.
std::string held_text(const nlohmann::ordered_json& job);

// What `ductile why` and `ductile status` show of a service's job.
std::string job_table(const nlohmann::ordered_json& job);

}  // namespace ductile::cli
