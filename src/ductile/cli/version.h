#pragma once

#include <string_view>

namespace ductile::cli {

// The project's version, "0.1.0", from CMakeLists.txt.
std::string_view version();

}  // namespace ductile::cli
