#include "ductile/base/dtype.h"

#include <array>
#include <cctype>
#include <string>
#include <utility>

#include "ductile/base/error.h"

namespace ductile {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 11> kNames{{{DType::u8, "u8"},
                                                                     {DType::i8, "i8"},
                                                                     {DType::u16, "u16"},
                                                                     {DType::i16, "i16"},
                                                                     {DType::u32, "u32"},
                                                                     {DType::i32, "i32"},
                                                                     {DType::i64, "i64"},
                                                                     {DType::f16, "f16"},
                                                                     {DType::bf16, "bf16"},
                                                                     {DType::f32, "f32"},
                                                                     {DType::f64, "f64"}}};

}  // namespace

std::string_view to_string(DType t) {
  for (const auto& [type, name] : kNames) {
    if (type == t) return name;
  }
  return "?";
}

DType dtype_from_string(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [type, known] : kNames) {
    if (known == lower) return type;
  }
  fail(ErrorCode::invalid_argument, "unknown element type '{}'; known: u8 ... f64", name);
}

int64_t num_elements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

}  // namespace ductile
