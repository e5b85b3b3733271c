#pragma once

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::cluster {

// The right to be the one server of a file or socket, by whatever path it is reached, until the
// descriptor is closed: the lock of a file beside it. Throws conflict, which names the process that
// has it, and what helps.
Descriptor lock_of(const fs::path& path);

// Its holder is about to end, which takes a while; the conflict of others says so from now on.
void note_stop_in(const Descriptor& lock);

}  // namespace ductile::cluster
