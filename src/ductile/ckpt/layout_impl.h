#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/ckpt/tensor.h"

namespace ductile::ckpt {

// How tensors lie in a checkpoint's byte stream, and where the stream is cut into chunks.
//
// A pure function of names and sizes, so that two saves of one model cut alike and equal content
// gives equal chunks. A tensor of at least half a chunk, or one that is apart, is cut into equal
// parts of its own; smaller ones are packed together in name order, but never across a change of
// section, the part of a name before its first '/' ("model/...", "optimizer/..."): what changes
// together is stored together, and a thousand biases do not make a thousand files.
struct Layout {
  std::vector<int64_t> tensor_offsets;  // by the index of the tensor given
  std::vector<int64_t> chunk_sizes;     // in stream order; all in 1 ... chunk_bytes
  std::vector<size_t> order;            // indices of the tensors in stream order
  int64_t total_bytes = 0;
};

// A power of two near a 64th of all bytes, from 256 KiB to 4 MiB.
int64_t default_chunk_bytes(std::span<const TensorView> tensors);

Layout plan_layout(std::span<const TensorView> tensors, int64_t chunk_bytes);

}  // namespace ductile::ckpt
