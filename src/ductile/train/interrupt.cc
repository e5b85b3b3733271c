#include "ductile/train/interrupt.h"

#include <csignal>

namespace ductile::train {
namespace {

volatile std::sig_atomic_t g_signal = 0;  // the one thing a signal handler may touch

void handle(int number) { g_signal = number; }

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);  // a limit on files is an error of the write, which says so
  ::signal(SIGPIPE, SIG_IGN);  // a reader of our progress that went away is no reason to die
}

int pending_interrupt() { return g_signal; }

}  // namespace ductile::train
