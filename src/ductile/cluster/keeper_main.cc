// ductile-keeper RUN: starts the command of a job and stays with it, so that its whole process tree
// ends with it, and its end is known to whoever asks later. The service starts it.
#include <csignal>
#include <exception>

#include <unistd.h>

#include "ductile/base/log.h"
#include "ductile/cluster/command_impl.h"

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGQUIT, SIGCHLD}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  for (const int signal : {SIGHUP, SIGPIPE, SIGINT}) std::signal(signal, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);  // a parent may have left it ignored, which survives exec
  setsid();                       // a terminal that is closed takes nobody with it
  if (argc != 2) {
    ductile::log_line("ductile-keeper is started by the service of `ductile up`");
    return 2;
  }
  try {
    ductile::cluster::keep(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    ductile::log_line(error.what());
    return 1;
  }
}
