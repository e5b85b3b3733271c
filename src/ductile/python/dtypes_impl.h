#pragma once

#include <optional>
#include <utility>

#include <c10/core/ScalarType.h>

#include "ductile/base/dtype.h"

namespace ductile::python {

// The types that files of weights and torch have in common.
inline constexpr std::pair<DType, at::ScalarType> kTypes[] = {
    {DType::u8, at::kByte},       {DType::i8, at::kChar},   {DType::i16, at::kShort},
    {DType::i32, at::kInt},       {DType::i64, at::kLong},  {DType::f16, at::kHalf},
    {DType::bf16, at::kBFloat16}, {DType::f32, at::kFloat}, {DType::f64, at::kDouble}};

inline std::optional<at::ScalarType> scalar_type(DType wanted) {
  for (const auto& [type, of_torch] : kTypes)
    if (type == wanted) return of_torch;
  return std::nullopt;
}

// Truth values are bytes in a file.
inline std::optional<DType> dtype_of(at::ScalarType wanted) {
  if (wanted == at::kBool) return DType::u8;
  for (const auto& [type, of_torch] : kTypes)
    if (of_torch == wanted) return type;
  return std::nullopt;
}

}  // namespace ductile::python
