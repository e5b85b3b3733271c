#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/ckpt/chunk_store_impl.h"
#include "ductile/ckpt/disk.h"

namespace ductile::ckpt {

// What may be removed from a folder, and what must stay.
struct Garbage {
  std::vector<fs::path> manifests;
  std::vector<ChunkRef> chunks;
  ChunkIds live;  // chunks that the kept checkpoints need

  bool empty() const { return manifests.empty() && chunks.empty(); }
};

// Under the folder's lock. What may go, now that `newest` is the newest checkpoint that counts:
// manifests of later steps all stay, whatever they are, since somebody may still want them; of the
// others stay the `keep` newest complete ones for which `counts(step)` holds. All other manifests,
// and chunks that nothing kept needs, are garbage. Nothing is when there are manifests but none of
// a complete checkpoint. Throws when something cannot be read (unavailable) or was written by a
// newer program (conflict).
Garbage find_garbage(const fs::path& folder, int64_t keep, int64_t newest,
                     const std::function<bool(int64_t step)>& counts);

// Removes the manifests, durably, and only then the chunks: a crash or failure at any point leaves
// what is kept intact. Throws on the first operation that fails. Returns the bytes freed.
int64_t remove_garbage(Disk& disk, const fs::path& folder, const Garbage& garbage);

// Removes everything in tmp/, and what waits in pending/ to be published. Returns the bytes freed.
int64_t remove_temporaries(Disk& disk, const fs::path& folder);

}  // namespace ductile::ckpt
