#pragma once

#include "ductile/control/protocol.h"

namespace ductile::link {

// The time that both machines of control want: CLOCK_BOOTTIME, which goes on while a process is
// stopped and while its machine sleeps.
control::Time boot_time();

}  // namespace ductile::link
