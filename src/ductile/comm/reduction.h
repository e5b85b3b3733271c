#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ductile/base/dtype.h"

namespace ductile::comm {

enum class Reduction : uint8_t { sum, min, max };
std::string_view to_string(Reduction r);

// dst[i] = a[i] combined with b[i], for every DType; pointers of any alignment, dst may be a or b.
// Sums of f16 and bf16 are made in f32 and rounded once; integers wrap around. min and max of a NaN
// and a number are the number.
void combine(Reduction reduction, DType type, std::byte* dst, const std::byte* a,
             const std::byte* b, size_t n);

}  // namespace ductile::comm
