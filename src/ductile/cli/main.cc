// The program `ductile`.
#include <iostream>

#include "ductile/base/error.h"
#include "ductile/cli/command_line.h"
#include "ductile/cli/other_commands.h"

int main(int argc, char** argv) {
  using namespace ductile::cli;
  if (!is_other_command(argc, argv)) return run_program(argc, argv, own_commands());
  try {
    become_fleet(argv);
  } catch (const ductile::Error& error) {
    std::cerr << "ductile: " << error.what() << "\n";
    return exit_code(error.code());
  }
}
