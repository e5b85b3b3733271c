#pragma once

#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/run/folder.h"

// What `ductile minima` measured of a run: minima.jsonl, an object per measurement
// (docs/reference/run-folder.md).
namespace ductile::run {

inline fs::path minima_file(const RunFolder& folder) { return folder.path() / "minima.jsonl"; }

// All measurements in their order. Lines that cannot be read are left out; a missing file counts as
// an empty one.
std::vector<nlohmann::json> read_minima(const RunFolder& folder);

// Appends one, with the time, beside whoever else writes in the folder. Throws unavailable naming
// the file.
void append_minimum(const RunFolder& folder, nlohmann::json measurement);

}  // namespace ductile::run
