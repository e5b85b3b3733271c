#pragma once

#include "ductile/control/worker_protocol.h"

namespace ductile::train {

// In a handler: what the exception under way means (control/worker_protocol.h), libtorch's, too.
control::WorkerEvent event_of_current(control::Generation generation);
// The same while the checkpoint that Restore names is opened and read.
control::WorkerEvent restore_event_of_current(control::Generation generation);

}  // namespace ductile::train
