#pragma once

#include "ductile/base/files.h"
#include "ductile/run/folder.h"

namespace ductile::run {

// Where checkpoints lie: those of a run directory, or the folder of checkpoints itself. Throws
// not_found if it is neither.
fs::path checkpoints_of(const fs::path& path);

// The weights with which a run begins in place of drawn ones; there is a file if they were given.
inline constexpr const char* kInitialWeights = "initial.safetensors";
fs::path initial_weights_of(const RunFolder& folder);

}  // namespace ductile::run
