#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ductile {

// Element types of host buffers. Names are spelled as in safetensors, lower case in our files.
enum class DType : uint8_t { u8, i8, u16, i16, u32, i32, i64, f16, bf16, f32, f64 };

constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::u8:
    case DType::i8:
      return 1;
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u32:
    case DType::i32:
    case DType::f32:
      return 4;
    case DType::i64:
    case DType::f64:
      return 8;
  }
  return 0;
}

std::string_view to_string(DType t);             // "f32"
DType dtype_from_string(std::string_view name);  // either case; throws invalid_argument

using Shape = std::vector<int64_t>;
int64_t num_elements(const Shape& shape);

}  // namespace ductile
