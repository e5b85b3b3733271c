#pragma once

#include <limits>

namespace ductile::plan {

// The time of what cannot be done, and the start of every minimum.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace ductile::plan
