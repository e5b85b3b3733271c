#pragma once

#include <span>

#include "ductile/cli/command_line.h"

namespace ductile::cli {

// The commands of the program `ductile-fleet` (cli/other_commands.h).
std::span<const AddCommand> fleet_commands();

}  // namespace ductile::cli
