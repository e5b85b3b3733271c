// main() of the programs: the command line on the process it runs in.
#include <csignal>
#include <cstdlib>
#include <iostream>

#include <unistd.h>

#include "ductile/cli/command_line.h"

extern char** environ;

namespace ductile::cli {

int run_program(int argc, char** argv, std::span<const AddCommand> commands) {
  // Whoever starts us may ignore it, and then no end of a worker could be waited for.
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGXFSZ, SIG_IGN);  // a limit on files is an error of the write, which says so
  std::ios::sync_with_stdio(false);
  Console console(std::cout, std::cerr);
  console.out_terminal = isatty(STDOUT_FILENO) == 1;
  console.err_terminal = isatty(STDERR_FILENO) == 1;
  const char* no_color = std::getenv("NO_COLOR");
  console.color = console.err_terminal && (no_color == nullptr || *no_color == '\0');
  Context context{console, environ};
  const ExitCode code = run_command_line(argc, argv, context, commands);
  std::cout.flush();
  if (!std::cout && code == kDone) {
    console.error("standard output cannot be written, so a part of the answer is missing");
    return kFailed;
  }
  return code;
}

}  // namespace ductile::cli
