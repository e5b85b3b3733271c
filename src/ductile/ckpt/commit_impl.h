#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/ckpt/chunk_store_impl.h"
#include "ductile/ckpt/disk.h"
#include "ductile/ckpt/manifest_impl.h"
#include "ductile/ckpt/writer.h"

namespace ductile::ckpt {

// Turns chunks in memory into a durable checkpoint of a folder whose lock the caller holds, or,
// with WriterOptions::pending_tag and without a lock, into one that waits for publish(). Used by
// one thread. The order is what makes it safe: chunks into tmp/, fsync; rename to their names,
// fsync of those folders; manifest into tmp/, fsync, rename, fsync; only then is anything removed.
class Committer {
 public:
  // Makes the sub-folders, removes leftovers of a crash, and learns which chunks are there.
  Committer(fs::path folder, const WriterOptions& options);

  // Fills the result's counts. On a throw the checkpoints that were there still are; the new one
  // may be there too if only the very last fsync failed.
  void commit(int64_t step, std::string_view state, std::span<const TensorInfo> tensors,
              std::span<const std::span<const std::byte>> chunks, SaveResult& result);

 private:
  struct NewChunk {
    ChunkId id;
    std::span<const std::byte> bytes;
  };

  bool have(const ChunkRef& chunk, std::vector<std::byte>& buffer);
  std::vector<NewChunk> find_new(std::span<const ChunkRef> refs,
                                 std::span<const std::span<const std::byte>> chunks,
                                 SaveResult& result);
  void require_space(int64_t step, std::span<const NewChunk> fresh, size_t manifest_bytes);
  void write_chunks(std::span<const NewChunk> fresh);
  void write_temporary(const fs::path& path, std::span<const std::byte> bytes);
  void undo(int64_t step, std::span<const NewChunk> fresh);
  int64_t clean(int64_t keep, int64_t newest, const std::function<bool(int64_t step)>& counts);
  void commit_pending(int64_t step, std::string_view manifest, std::span<const ChunkRef> refs,
                      std::span<const std::span<const std::byte>> chunks, SaveResult& result);
  fs::path chunk_temporary(const ChunkId& id) const;
  fs::path manifest_temporary(int64_t step) const;
  void check(int result, const fs::path& path, const char* what) const;

  fs::path folder_;
  Disk& disk_;
  int64_t keep_;
  std::optional<int64_t> resumed_step_;
  std::string tag_;          // empty: checkpoints count at once
  std::set<int64_t> saved_;  // steps this writer saved
  int64_t needed_ = 0;       // bytes of disk for the checkpoint being written, and how many of them
  int64_t written_ = 0;      // have been, for the message when there are no more
  // Chunks that a durable manifest names and that are there in the right size. True once their
  // content, too, is known to be right: a bit that flipped on disk must not enter new checkpoints.
  std::unordered_map<ChunkId, bool, ChunkIdHash> known_;
};

}  // namespace ductile::ckpt
