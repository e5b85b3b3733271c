#pragma once

#include <ctime>

namespace ductile::plan {

// Seconds of processor time that this process has used.
inline double cpu_now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace ductile::plan
