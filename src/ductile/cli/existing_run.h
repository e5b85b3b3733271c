#pragma once

#include "ductile/base/files.h"

namespace ductile::cli {

// Throws conflict: the folder `out` of `train --out` exists. The message says what is there, and
// what may be done.
[[noreturn]] void refuse_existing(const fs::path& out);

}  // namespace ductile::cli
