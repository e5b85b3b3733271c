#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/ckpt/catalog_impl.h"
#include "ductile/ckpt/commit_impl.h"
#include "ductile/ckpt/garbage_impl.h"
#include "ductile/ckpt/pending_impl.h"

namespace ductile::ckpt {
namespace {

int64_t blocks(int64_t bytes) {
  constexpr int64_t kBlock = 4096;
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

}  // namespace

Committer::Committer(fs::path folder, const WriterOptions& options)
    : folder_(std::move(folder)),
      disk_(options.disk != nullptr ? *options.disk : real_disk()),
      keep_(options.keep),
      resumed_step_(options.resumed_step),
      tag_(options.pending_tag) {
  std::vector<const char*> names = {"chunks", "manifests", "tmp"};
  if (!tag_.empty()) names.push_back("pending");
  for (const char* name : names) {
    check(disk_.make_folder(folder_ / name), folder_ / name, "mkdir");
  }
  check(disk_.sync_folder(folder_), folder_, "fsync");
  if (tag_.empty()) remove_temporaries(disk_, folder_);
  const ChunkSizes sizes = scan_chunks(folder_);
  for (const ManifestFile& file : list_manifests(folder_)) {
    try {
      for (const ChunkRef& chunk : load_manifest(file).chunks) {
        const auto it = sizes.find(chunk.id);
        if (it != sizes.end() && it->second == chunk.size) known_.emplace(chunk.id, false);
      }
    } catch (Error& e) {
      if (e.code() == ErrorCode::data_loss) continue;  // open_latest refuses it by name
      if (e.code() == ErrorCode::not_found && !tag_.empty()) continue;  // removed by a publisher
      e.with_context(file.path.string());
      throw;
    }
  }
}

void Committer::check(int result, const fs::path& path, const char* what) const {
  if (result == -ENOSPC || result == -EDQUOT) {
    fail(ErrorCode::unavailable,
         "{}: disk full: {} of {} failed with \"{}\" after {} of {} bytes of this checkpoint, {} "
         "are "
         "free; make room there or lower checkpoint.keep (earlier checkpoints stay usable)",
         folder_.string(), what, path.filename().string(), std::strerror(-result), written_,
         needed_, std::max<int64_t>(0, disk_.free_bytes(folder_)));
  }
  if (result < 0) fail_errno(path.string() + ": " + what, -result);
}

void Committer::commit(int64_t step, std::string_view state, std::span<const TensorInfo> tensors,
                       std::span<const std::span<const std::byte>> chunks, SaveResult& result) {
  std::vector<ChunkRef> refs;
  refs.reserve(chunks.size());
  for (std::span<const std::byte> chunk : chunks) {
    refs.push_back({hash_bytes(chunk), static_cast<int64_t>(chunk.size())});
    result.total_bytes += refs.back().size;
  }
  const std::string manifest = manifest_text(step, state, refs, tensors);
  if (!tag_.empty()) return commit_pending(step, manifest, refs, chunks, result);
  const std::vector<NewChunk> fresh = find_new(refs, chunks, result);
  require_space(step, fresh, manifest.size());
  try {
    write_chunks(fresh);
    write_temporary(manifest_temporary(step), std::as_bytes(std::span(manifest)));
  } catch (...) {
    undo(step, fresh);
    throw;
  }
  // From here on the manifest may be seen, so the chunks stay even if making it durable fails.
  for (const ChunkRef& ref : refs) known_[ref.id] = true;
  saved_.insert(step);
  const fs::path path = manifest_path(folder_, step);
  const int renamed = disk_.rename(manifest_temporary(step), path);
  if (renamed < 0) disk_.remove(manifest_temporary(step));
  check(renamed, path, "rename");
  check(disk_.sync_folder(path.parent_path()), path.parent_path(), "fsync");

  try {
    result.freed_bytes = clean(keep_, step, [&](int64_t s) {
      return saved_.contains(s) || !resumed_step_ || s <= *resumed_step_;
    });
  } catch (const std::exception& e) {
    result.warning = e.what();
  }
}

// The manifest comes first, as what this save needs: a publisher that cleans meanwhile leaves those
// chunks alone. On failure only own temporaries go, since other writers may have found the chunks.
void Committer::commit_pending(int64_t step, std::string_view manifest,
                               std::span<const ChunkRef> refs,
                               std::span<const std::span<const std::byte>> chunks,
                               SaveResult& result) {
  const fs::path intent = manifest_temporary(step);
  const fs::path pending = pending_path(folder_, step, tag_);
  std::vector<NewChunk> fresh;
  try {
    write_temporary(intent, std::as_bytes(std::span(manifest)));
    fresh = find_new(refs, chunks, result);
    require_space(step, fresh, manifest.size());
    write_chunks(fresh);
    check(disk_.rename(intent, pending), pending, "rename");
  } catch (...) {
    for (const NewChunk& chunk : fresh) disk_.remove(chunk_temporary(chunk.id));
    disk_.remove(intent);
    throw;
  }
  check(disk_.sync_folder(pending.parent_path()), pending.parent_path(), "fsync");
  for (const ChunkRef& ref : refs) known_[ref.id] = true;
}

// Whether the chunk lies durably and soundly in the folder already.
bool Committer::have(const ChunkRef& chunk, std::vector<std::byte>& buffer) {
  const auto it = known_.find(chunk.id);
  if (it == known_.end()) return false;
  std::error_code error;
  const uintmax_t size = fs::file_size(chunk_path(folder_, chunk.id), error);
  bool sound = !error && size == static_cast<uintmax_t>(chunk.size);
  if (sound && !it->second) {
    buffer.resize(static_cast<size_t>(chunk.size));
    try {
      read_chunk(folder_, chunk, buffer);
      it->second = true;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::data_loss) throw;
      sound = false;
    }
  }
  if (!sound) known_.erase(it);  // to be written again, over the bad one
  return sound;
}

std::vector<Committer::NewChunk> Committer::find_new(
    std::span<const ChunkRef> refs, std::span<const std::span<const std::byte>> chunks,
    SaveResult& result) {
  std::vector<NewChunk> fresh;
  ChunkIds seen;
  std::vector<std::byte> stored;
  for (size_t i = 0; i < refs.size(); ++i) {
    const ChunkId& id = refs[i].id;
    const bool seen_before = !seen.insert(id).second;
    if (seen_before || have(refs[i], stored)) {
      ++result.reused_chunks;
      result.reused_bytes += refs[i].size;
    } else {
      ++result.new_chunks;
      result.new_bytes += refs[i].size;
      fresh.push_back({id, chunks[i]});
    }
  }
  return fresh;
}

void Committer::require_space(int64_t step, std::span<const NewChunk> fresh,
                              size_t manifest_bytes) {
  constexpr int64_t kFolders = 64 * 4096;  // room for names and new sub-folders
  int64_t needed = blocks(static_cast<int64_t>(manifest_bytes)) + (fresh.empty() ? 0 : kFolders);
  for (const NewChunk& chunk : fresh) needed += blocks(static_cast<int64_t>(chunk.bytes.size()));
  needed_ = needed;
  written_ = 0;
  const auto free_now = [&] {
    const int64_t free = disk_.free_bytes(folder_);
    if (free < 0) fail_errno(folder_.string() + ": statvfs", static_cast<int>(-free));
    return free;
  };
  int64_t free = free_now();
  if (free < needed && tag_.empty()) {
    // Chunks that an earlier crash left behind may be in the way.
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    clean(kAll, kAll, [](int64_t) { return true; });
    free = free_now();
  }
  if (free < needed) {
    fail(ErrorCode::unavailable,
         "{}: disk full: the checkpoint of step {} needs {} bytes more, {} are free, {} are "
         "missing; "
         "make room there or lower checkpoint.keep (earlier checkpoints stay usable)",
         folder_.string(), step, needed, free, needed - free);
  }
}

void Committer::write_chunks(std::span<const NewChunk> fresh) {
  constexpr size_t kBatch = 64;  // files open at once; write-back of a batch overlaps
  const auto temporary = [&](size_t i) { return chunk_temporary(fresh[i].id); };
  std::set<fs::path> touched;
  for (size_t begin = 0; begin < fresh.size(); begin += kBatch) {
    const size_t end = std::min(fresh.size(), begin + kBatch);
    {
      std::vector<Descriptor> files;  // closed also where something throws before the sync
      for (size_t i = begin; i < end; ++i) {
        const int fd = disk_.open_new(temporary(i));
        check(fd, temporary(i), "create");
        files.emplace_back(fd);
        check(disk_.write(fd, fresh[i].bytes), temporary(i), "write");
        written_ += static_cast<int64_t>(fresh[i].bytes.size());
      }
      for (size_t i = begin; i < end; ++i) {
        check(disk_.sync(files[i - begin].get()), temporary(i), "fsync");
      }
    }
    for (size_t i = begin; i < end; ++i) {
      const fs::path path = chunk_path(folder_, fresh[i].id);
      if (touched.insert(path.parent_path()).second) {
        check(disk_.make_folder(path.parent_path()), path.parent_path(), "mkdir");
      }
      check(disk_.rename(temporary(i), path), path, "rename");
    }
  }
  for (const fs::path& sub : touched) check(disk_.sync_folder(sub), sub, "fsync");
  if (!touched.empty()) check(disk_.sync_folder(folder_ / "chunks"), folder_ / "chunks", "fsync");
}

void Committer::write_temporary(const fs::path& path, std::span<const std::byte> bytes) {
  const int fd = disk_.open_new(path);
  check(fd, path, "create");
  const Descriptor file(fd);
  check(disk_.write(fd, bytes), path, "write");
  check(disk_.sync(fd), path, "fsync");
}

// After a failure before the manifest was there. A chunk that is known is needed by an earlier
// checkpoint; `fresh` holds none of those. What cannot be removed now goes at the next cleaning.
void Committer::undo(int64_t step, std::span<const NewChunk> fresh) {
  disk_.remove(manifest_temporary(step));
  for (const NewChunk& chunk : fresh) {
    disk_.remove(chunk_temporary(chunk.id));
    disk_.remove(chunk_path(folder_, chunk.id));
  }
}

int64_t Committer::clean(int64_t keep, int64_t newest,
                         const std::function<bool(int64_t step)>& counts) {
  const Garbage garbage = find_garbage(folder_, keep, newest, counts);
  // Forgotten before the first is removed: a failure half-way must not leave one thought present.
  if (!garbage.empty()) {
    std::erase_if(known_, [&](const auto& entry) { return !garbage.live.contains(entry.first); });
  }
  return remove_garbage(disk_, folder_, garbage);
}

fs::path Committer::chunk_temporary(const ChunkId& id) const {
  return tag_.empty() ? folder_ / "tmp" / id.hex() : tagged_chunk_path(folder_, id, tag_);
}

fs::path Committer::manifest_temporary(int64_t step) const {
  return tag_.empty() ? folder_ / "tmp" / manifest_name(step) : intent_path(folder_, step, tag_);
}

}  // namespace ductile::ckpt
