#pragma once

namespace ductile::train {

// Turns SIGINT and SIGTERM into a flag that the step loop reads; the run then saves its state and
// ends. A second signal ends the process at once, in the ordinary way. Whether the process also
// gets a signal when its parent dies is decided by whoever starts it (process/spawn.h): the workers
// of a controller outlive it.
void catch_interrupts();

// The signal that arrived, or 0.
int pending_interrupt();

}  // namespace ductile::train
