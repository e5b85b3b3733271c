#pragma once

#include "ductile/base/files.h"
#include "ductile/net/secret.h"

namespace ductile::server {

// The secret of the job in the run directory `run`, made where there is none: its processes know
// each other by it. Throws as net::Secret::from_file does, and conflict where the file is empty and
// a process may know what was in it.
net::Secret secret_of(const fs::path& run);

}  // namespace ductile::server
