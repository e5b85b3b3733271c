#pragma once

namespace ductile::train {

// SIGINT and SIGTERM as a flag that the step loop reads; the run then saves its state and ends.
// A second signal ends the process at once, the ordinary way. Also asks the kernel for SIGTERM when
// the parent process dies, so that no worker outlives the command that started it.
void catch_interrupts();

// The signal that came, or 0.
int pending_interrupt();

}  // namespace ductile::train
