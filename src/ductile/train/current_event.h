#pragma once

#include "ductile/control/worker_protocol.h"

namespace ductile::train {

// In a handler: what the exception under way means (control/worker_protocol.h), libtorch's, too.
control::WorkerEvent event_of_current(control::Generation generation);
// The same while the checkpoint that Restore names is opened and read.
control::WorkerEvent restore_event_of_current(control::Generation generation);
// The same while a worker loads its job, before it takes part in anything: the controller tries
// again what a host refuses (unavailable: no memory, no thread ...), here or elsewhere, and ends a
// job that cannot begin anywhere with this text.
control::JobError load_error_of_current();

}  // namespace ductile::train
