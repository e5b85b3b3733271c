#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ductile/base/isa.h"

namespace ductile::run {

// What to do where OpenBLAS, which chooses its kernels by the processors that its version knows,
// has chosen some of a lesser instruction set than `widest`; none where it has not. `core` is its
// name of the processor, such as "Haswell".
std::optional<std::string> blas_advice(std::string_view core, IsaLevel widest);

}  // namespace ductile::run
