#pragma once

#include "ductile/control/protocol.h"

namespace ductile::link {

// The clock that both state machines of control need: CLOCK_BOOTTIME, which runs on while a process
// is stopped and while its machine sleeps.
control::Time boot_time();

}  // namespace ductile::link
