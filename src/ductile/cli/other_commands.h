#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "ductile/base/files.h"

namespace ductile::cli {

// The commands of `ductile` are two programs: `ductile` itself has those that train and what one
// does with data and weights. Those that run, follow, simulate and plan fleets of machines are in
// `ductile-fleet`, so that training is built and started without them. Users do not see that:
// `ductile` starts the program beside it.
struct OtherCommand {
  const char* name;
  const char* help;
};

// In the order of `ductile --help`.
std::span<const OtherCommand> live_commands();
std::span<const OtherCommand> service_commands();
std::span<const OtherCommand> lab_commands();

// Of a command of ductile-fleet; throws internal for any other name.
const char* other_help(std::string_view name);

// Whether the first word that is no option is such a command.
bool is_other_command(int argc, const char* const* argv);

// A command of ductile-fleet at work beside its caller, all of whose calls come from one thread.
class FleetCommand {
 public:
  // Begins it. Throws unavailable or not_found, as process::spawn(), where it is not installed.
  // `what` is said before its errors.
  FleetCommand(const std::vector<std::string>& words, std::string what);
  ~FleetCommand();  // kills it where it has not ended
  FleetCommand(const FleetCommand&) = delete;
  FleetCommand& operator=(const FleetCommand&) = delete;

  bool ended();  // whether output() answers at once
  // What it prints; waits for its end. Throws what it says where it fails: invalid_argument for its
  // exit codes 1 and 2, unavailable for others.
  std::string output();

 private:
  bool reap(int flags);

  const std::string what_;
  const UnnamedFile printed_, said_;
  pid_t child_ = -1;  // -1: reaped
  int status_ = 0;    // as waitpid() says
};

// What a command of ductile-fleet prints, once it has ended. Throws as FleetCommand does.
std::string fleet_output(const std::vector<std::string>& words, const std::string& what);

// Becomes ductile-fleet with the same words. Returns only if there is none: throws unavailable,
// which says how to get it.
[[noreturn]] void become_fleet(char* const* argv);

}  // namespace ductile::cli
