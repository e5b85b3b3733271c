#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/tensor.h"

namespace ductile::ckpt {

// xxh3-128 of a chunk's bytes: its name. Guards against accidents, not against an adversary.
struct ChunkId {
  uint64_t high = 0;
  uint64_t low = 0;

  auto operator<=>(const ChunkId&) const = default;
  std::string hex() const;  // 32 lower-case digits
};

ChunkId hash_bytes(std::span<const std::byte> bytes);
// False unless `text` is 32 lower-case hexadecimal digits.
bool parse_chunk_id(std::string_view text, ChunkId& id);

struct ChunkIdHash {
  size_t operator()(const ChunkId& id) const { return static_cast<size_t>(id.low); }
};

struct ChunkRef {
  ChunkId id;
  int64_t size = 0;
};

// What one checkpoint is: its tensors tile the concatenation of its chunks, in this order.
struct Manifest {
  int64_t step = 0;
  nlohmann::json state;
  std::vector<ChunkRef> chunks;
  std::vector<TensorInfo> tensors;  // by offset, without gaps
  int64_t total_bytes = 0;
};

inline constexpr int kFormatVersion = 1;
inline constexpr int64_t kMaxChunkBytes = int64_t{1} << 30;

// The file's text: {"hash":"<xxh3-128 of the rest>","manifest":{...}}. `state` is JSON text.
std::string manifest_text(int64_t step, std::string_view state, std::span<const ChunkRef> chunks,
                          std::span<const TensorInfo> tensors);

// Checks everything, for a hostile text too. Throws data_loss (altered, truncated, inconsistent),
// or conflict for a format version this program does not know.
Manifest parse_manifest(std::string_view text);

std::string manifest_name(int64_t step);  // "step-000000000123.json"
// False unless `name` is exactly what manifest_name gives for some step.
bool parse_manifest_name(std::string_view name, int64_t& step);

}  // namespace ductile::ckpt
