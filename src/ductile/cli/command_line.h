#pragma once

#include <span>

#include "ductile/cli/commands.h"

namespace CLI {
class App;
}

namespace ductile::cli {

struct Parsed;
using AddCommand = void (*)(CLI::App& app, Parsed& parsed);

// The commands of the program `ductile`. Those of ductile-fleet are named and explained only.
std::span<const AddCommand> own_commands();

// Reads the command line (main's own arguments), runs the command and returns the exit code. Errors
// are written to the console; nothing is thrown. A wrong word or option is answered with the
// nearest known one and kUsage.
ExitCode run_command_line(int argc, const char* const* argv, Context& context,
                          std::span<const AddCommand> commands);

// main() of both programs: as above, on the process it runs in.
int run_program(int argc, char** argv, std::span<const AddCommand> commands);

}  // namespace ductile::cli
