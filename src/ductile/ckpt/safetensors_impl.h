#pragma once

#include <functional>
#include <span>

#include "ductile/ckpt/safetensors.h"

namespace ductile::ckpt {

// Delivers bytes [offset, offset + into.size()) of tensor number `index`.
using TensorReader = std::function<void(size_t index, int64_t offset, std::span<std::byte> into)>;

// write_safetensors over tensors that are fetched piece by piece. `tensors` need name, dtype, shape
// and num_bytes, already checked and unique.
void write_safetensors(const fs::path& file, std::span<const TensorInfo> tensors,
                       const Metadata& metadata, const TensorReader& read);

}  // namespace ductile::ckpt
