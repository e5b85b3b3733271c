#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "ductile/base/dtype.h"

namespace ductile::ckpt {

// A named tensor in someone else's memory: contiguous, row-major, little-endian. The bytes must
// live as long as the call that takes the view.
struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;  // num_elements(shape) * size_of(dtype)
  bool apart = false;                // its chunks hold nothing of other tensors
};

// A tensor as a file describes it.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  int64_t num_bytes = 0;
  int64_t offset = 0;  // in the checkpoint's byte stream, or in a safetensors file's data part
};

// Delivers bytes [offset, offset + into.size()) of tensor number `index` of a list.
using TensorReader = std::function<void(size_t index, int64_t offset, std::span<std::byte> into)>;

// num_elements(shape) * size_of(dtype), for shapes from outside: throws invalid_argument naming the
// tensor for a negative dimension, more than 32 dimensions, or a product above 2^62.
int64_t checked_num_bytes(std::string_view name, DType dtype, const Shape& shape);

// Throws invalid_argument unless names are unique, not empty and at most 4096 bytes, and every view
// has as many bytes as its shape says.
void check_views(std::span<const TensorView> tensors);

}  // namespace ductile::ckpt
