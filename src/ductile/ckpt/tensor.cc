#include "ductile/ckpt/tensor.h"

#include <unordered_set>

#include "ductile/base/error.h"

namespace ductile::ckpt {

int64_t checked_num_bytes(std::string_view name, DType dtype, const Shape& shape) {
  constexpr size_t kMaxDims = 32;
  constexpr int64_t kMaxBytes = int64_t{1} << 62;
  if (shape.size() > kMaxDims) {
    fail(ErrorCode::invalid_argument, "tensor '{}' has {} dimensions; at most {} are possible",
         name, shape.size(), kMaxDims);
  }
  bool empty = false;
  for (int64_t d : shape) {
    if (d < 0) {
      fail(ErrorCode::invalid_argument, "tensor '{}' has the negative dimension {}", name, d);
    }
    empty = empty || d == 0;
  }
  if (empty) return 0;
  int64_t bytes = static_cast<int64_t>(size_of(dtype));
  for (int64_t d : shape) {
    if (d > kMaxBytes / bytes) {
      fail(ErrorCode::invalid_argument, "tensor '{}' would have more than 2^62 bytes", name);
    }
    bytes *= d;
  }
  return bytes;
}

void check_views(std::span<const TensorView> tensors) {
  constexpr size_t kMaxName = 4096;
  std::unordered_set<std::string_view> names;
  for (const TensorView& t : tensors) {
    if (t.name.empty() || t.name.size() > kMaxName) {
      fail(ErrorCode::invalid_argument, "a tensor's name has {} bytes; 1 to {} are possible",
           t.name.size(), kMaxName);
    }
    if (!names.insert(t.name).second) {
      fail(ErrorCode::invalid_argument, "two tensors are named '{}'", t.name);
    }
    const int64_t bytes = checked_num_bytes(t.name, t.dtype, t.shape);
    if (static_cast<uint64_t>(bytes) != t.bytes.size()) {
      fail(ErrorCode::invalid_argument, "tensor '{}' has {} bytes where its shape says {}", t.name,
           t.bytes.size(), bytes);
    }
  }
}

}  // namespace ductile::ckpt
