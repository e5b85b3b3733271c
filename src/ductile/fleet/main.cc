// The program `ductile-fleet`, which `ductile` becomes for the commands of clusters.
#include "ductile/fleet/fleet_commands.h"

int main(int argc, char** argv) {
  using namespace ductile::cli;
  return run_program(argc, argv, fleet_commands());
}
