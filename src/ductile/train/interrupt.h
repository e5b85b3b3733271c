#pragma once

namespace ductile::train {

// SIGINT and SIGTERM as a flag that the step loop reads; the run then saves its state and ends.
// A second signal ends the process at once, the ordinary way. Whether the death of its parent is
// one is for who starts the process to say (process/spawn.h): a controller's workers outlive it.
void catch_interrupts();

// The signal that came, or 0.
int pending_interrupt();

}  // namespace ductile::train
