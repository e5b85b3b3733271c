// ductile-keeper --run RUN --worker NUMBER [--host NODE]: starts the command of a job and stays
// with it, so that its whole process tree ends with it, and its end is known to whoever asks later.
// The service starts it, or the agent of a node does; both find it by these words.
#include <charconv>
#include <csignal>
#include <cstdint>
#include <exception>
#include <string_view>

#include <unistd.h>

#include "ductile/base/log.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/link/worker_processes.h"
#include "ductile/process/spawn.h"

int main(int argc, char** argv) {
  ductile::process::forget_parent();
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : ductile::link::kKeeperSignals) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  for (const int signal : {SIGHUP, SIGPIPE, SIGINT, SIGXFSZ}) std::signal(signal, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);  // a parent may have left it ignored, which survives exec
  setsid();                       // a terminal that is closed takes nobody with it
  const char* run = nullptr;
  uint64_t number = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i], value = argv[i + 1];
    if (key == "--run") run = argv[i + 1];
    if (key == "--worker") std::from_chars(value.data(), value.data() + value.size(), number);
  }
  if (run == nullptr || number == 0) {
    ductile::log_line("ductile-keeper is started by the service of `ductile up`");
    return 2;
  }
  try {
    ductile::cluster::keep(run, number);
    return 0;
  } catch (const std::exception& error) {
    ductile::log_line(error.what());
    return 1;
  }
}
