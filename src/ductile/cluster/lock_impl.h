#pragma once

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::cluster {

// The right to be the one server of a file or socket, by whatever path it is reached, until the
// descriptor is closed: the lock of a file beside it. Throws conflict, which names the process that
// has it.
Descriptor lock_of(const fs::path& path);

}  // namespace ductile::cluster
