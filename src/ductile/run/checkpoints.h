#pragma once

#include "ductile/base/files.h"

namespace ductile::run {

// Where checkpoints lie: those of a run directory, or the folder of checkpoints itself. Throws
// not_found if it is neither.
fs::path checkpoints_of(const fs::path& path);

}  // namespace ductile::run
