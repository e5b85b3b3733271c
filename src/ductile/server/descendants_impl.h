#pragma once

#include "ductile/base/files.h"

namespace ductile::server {

// The kernel's list of the children of this thread. Some kernels keep no such lists.
fs::path list_of_children();

// Kills all that descends from this process, which has one thread and is the subreaper of what it
// began: a child's children become its own, so that nothing escapes by ending in between. Where
// there is no `list`, children are sought among all processes.
void end_descendants(const fs::path& list = list_of_children());

}  // namespace ductile::server
