#pragma once

#include <optional>
#include <string_view>

#include "ductile/base/files.h"

namespace ductile::process {

// The first program of that name in the folders of PATH that this process may run. An empty entry
// of PATH, which a shell takes for the current folder, is skipped.
std::optional<fs::path> find_program(std::string_view name);

}  // namespace ductile::process
