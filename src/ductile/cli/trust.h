#pragma once

#include "ductile/base/files.h"

namespace ductile::cli {

// A run directory says what is run when the job goes on: `launcher` in hosts.json is a command,
// `model.library` in job.toml is loaded. A tuning session does so too, and tune.json chooses
// options of its trials. Throws invalid_argument, naming the file and its owner, where the folder
// or one of these files belongs to neither this user nor root.
void require_trusted(const fs::path& run);

}  // namespace ductile::cli
