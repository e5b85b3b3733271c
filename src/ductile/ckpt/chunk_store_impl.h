#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "ductile/base/files.h"
#include "ductile/ckpt/manifest_impl.h"

namespace ductile::ckpt {

// chunks/ab/abcdef... inside a checkpoint folder.
fs::path chunk_path(const fs::path& folder, const ChunkId& id);

// Reads a whole chunk into `out` (chunk.size bytes) and checks it. Throws, naming the file,
// data_loss when it is missing, of another size, or not what its name says, and unavailable when it
// cannot be read now; `out` is then undefined.
void read_chunk(const fs::path& folder, const ChunkRef& chunk, std::span<std::byte> out);

// Whether the files of these chunks are there, as long as they are to be; reads none. Throws
// data_loss, naming the file, and unavailable when one cannot be looked at now.
void check_chunks(const fs::path& folder, std::span<const ChunkRef> chunks);

using ChunkSizes = std::unordered_map<ChunkId, int64_t, ChunkIdHash>;

// Every file in chunks/ that bears a chunk's name, with its size. Files of other names are left
// out.
ChunkSizes scan_chunks(const fs::path& folder);

using ChunkIds = std::unordered_set<ChunkId, ChunkIdHash>;

}  // namespace ductile::ckpt
