#pragma once

#include "ductile/cli/commands.h"

namespace ductile::cli {

// Reads the command line (main's own arguments), runs the command and returns the exit code. Errors
// are written to the console; nothing is thrown. A wrong word or option is answered with the
// nearest known one and kUsage.
ExitCode run_command_line(int argc, const char* const* argv, Context& context);

}  // namespace ductile::cli
