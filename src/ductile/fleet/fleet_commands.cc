#include "ductile/fleet/fleet_commands.h"

#include "ductile/fleet/command_line_impl.h"

namespace ductile::cli {

std::span<const AddCommand> fleet_commands() {
  static constexpr AddCommand kCommands[] = {add_live, add_report, add_service,
                                             add_plan, add_sim,    add_bench};
  return kCommands;
}

}  // namespace ductile::cli
