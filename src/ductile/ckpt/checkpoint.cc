#include "ductile/ckpt/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <system_error>
#include <unordered_map>
#include <vector>

#include <fmt/ranges.h>

#include "ductile/base/error.h"
#include "ductile/base/interruption.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/catalog_impl.h"
#include "ductile/ckpt/chunk_store_impl.h"

namespace ductile::ckpt {

struct Checkpoint::Impl {
  Impl(fs::path where, Manifest m) : folder(std::move(where)), manifest(std::move(m)) {
    int64_t offset = 0;
    starts.reserve(manifest.chunks.size());
    for (const ChunkRef& chunk : manifest.chunks) {
      starts.push_back(offset);
      offset += chunk.size;
    }
    for (size_t i = 0; i < manifest.tensors.size(); ++i) index[manifest.tensors[i].name] = i;
  }

  // Bytes of the stream. A chunk that is wanted whole is read in place, others through `cache`, so
  // that reading the small tensors of one chunk one by one reads the file once.
  void read_stream(int64_t offset, std::span<std::byte> into) const {
    size_t i = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), offset) -
                                   starts.begin());
    while (!into.empty()) {
      DUCTILE_CHECK(i >= 1 && i <= starts.size(), "offset {} beyond the stream", offset);
      const ChunkRef& chunk = manifest.chunks[i - 1];
      const int64_t skip = offset - starts[i - 1];
      const size_t n = std::min(into.size(), static_cast<size_t>(chunk.size - skip));
      if (n == static_cast<size_t>(chunk.size)) {
        read_chunk(folder, chunk, into.first(n));
      } else {
        const std::lock_guard lock(mutex);
        if (cached != i) {
          cached = 0;
          cache.resize(static_cast<size_t>(chunk.size));
          read_chunk(folder, chunk, cache);
          cached = i;
        }
        std::memcpy(into.data(), cache.data() + skip, n);
      }
      into = into.subspan(n);
      offset += static_cast<int64_t>(n);
      ++i;
    }
  }

  fs::path folder;
  Manifest manifest;
  std::vector<int64_t> starts;  // where each chunk begins in the stream
  std::unordered_map<std::string_view, size_t> index;
  mutable std::mutex mutex;              // guards the two below
  mutable std::vector<std::byte> cache;  // the chunk number cached - 1
  mutable size_t cached = 0;
};

Checkpoint Checkpoint::open(const fs::path& folder, int64_t step) {
  const ManifestFile file{step, manifest_path(folder, step)};
  try {
    return Checkpoint(std::make_shared<const Impl>(folder, load_manifest(file)));
  } catch (Error& e) {
    if (e.code() != ErrorCode::not_found) {
      e.with_context(file.path.string());
      throw;
    }
    // A manifest that names a chunk that is gone is another matter.
    if (kind_of(file.path) != FileKind::none) throw;
    std::vector<int64_t> steps;
    for (const ManifestFile& other : list_manifests(folder)) steps.push_back(other.step);
    fail(ErrorCode::not_found, "{}: there is no checkpoint of step {}{}", folder.string(), step,
         steps.empty() ? ""
                       : fmt::format("; there are those of the steps {}", fmt::join(steps, ", ")));
  }
}

int64_t Checkpoint::step() const { return impl_->manifest.step; }
const nlohmann::json& Checkpoint::state() const { return impl_->manifest.state; }
const std::vector<TensorInfo>& Checkpoint::tensors() const { return impl_->manifest.tensors; }
int64_t Checkpoint::total_bytes() const { return impl_->manifest.total_bytes; }

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto it = impl_->index.find(name);
  return it == impl_->index.end() ? nullptr : &impl_->manifest.tensors[it->second];
}

void Checkpoint::read(std::string_view name, std::span<std::byte> into) const {
  const TensorInfo* t = find(name);
  if (t != nullptr && static_cast<uint64_t>(t->num_bytes) != into.size()) {
    fail(ErrorCode::invalid_argument,
         "tensor '{}' of checkpoint step {} has {} bytes; the room for it {}", name, step(),
         t->num_bytes, into.size());
  }
  read_range(name, 0, into);
}

void Checkpoint::read_range(std::string_view name, int64_t offset,
                            std::span<std::byte> into) const {
  const TensorInfo* t = find(name);
  if (t == nullptr) {
    fail(ErrorCode::not_found, "checkpoint step {} has no tensor '{}'", step(), name);
  }
  if (offset < 0 || offset > t->num_bytes ||
      into.size() > static_cast<uint64_t>(t->num_bytes - offset)) {
    fail(ErrorCode::invalid_argument,
         "tensor '{}' of checkpoint step {} has {} bytes; {} at {} are not in it", name, step(),
         t->num_bytes, into.size(), offset);
  }
  impl_->read_stream(t->offset + offset, into);
}

void Checkpoint::verify() const {
  ChunkIds seen;
  std::vector<std::byte> buffer;
  for (const ChunkRef& chunk : impl_->manifest.chunks) {
    if (!seen.insert(chunk.id).second) continue;
    ask_whether_wanted();
    // Looked at before room is made: a manifest may claim any size.
    const fs::path path = chunk_path(impl_->folder, chunk.id);
    std::error_code error;
    const uintmax_t size = fs::file_size(path, error);
    if (error && error != std::errc::no_such_file_or_directory) {
      fail(ErrorCode::unavailable, "{}: the chunk cannot be read now: {}", path.string(),
           error.message());
    }
    if (!error && size == static_cast<uintmax_t>(chunk.size)) {
      buffer.resize(static_cast<size_t>(chunk.size));
    }
    // Names what is wrong with a chunk that is missing or of another size.
    read_chunk(impl_->folder, chunk,
               std::span(buffer).first(std::min(buffer.size(), static_cast<size_t>(chunk.size))));
  }
}

namespace {

// A writer may remove a checkpoint while others look at it, the manifest first.
bool is_gone(const ManifestFile& file) { return kind_of(file.path) == FileKind::none; }

}  // namespace

LatestResult open_latest(const fs::path& folder) {
  // A writer may remove a checkpoint while it is looked at; the list is then out of date.
  constexpr int kMaxTries = 10;
  for (int attempt = 1;; ++attempt) {
    LatestResult result;
    bool changed = false;
    for (const ManifestFile& file : list_manifests(folder)) {
      try {
        Checkpoint checkpoint = Checkpoint::open(folder, file.step);
        checkpoint.verify();
        result.checkpoint = std::move(checkpoint);
        return result;
      } catch (const Error& e) {
        if (e.code() != ErrorCode::data_loss && e.code() != ErrorCode::not_found) {
          if (e.code() != ErrorCode::unavailable) throw;
          fail(ErrorCode::unavailable,
               "the checkpoint of step {} cannot be read now, and nothing was changed: {}; try "
               "again, or remove {} to go back to the checkpoint before it",
               file.step, e.what(), file.path.string());
        }
        changed = is_gone(file);
        if (changed && attempt < kMaxTries) break;
        result.refused.push_back(file.path.filename().string() + ": " + e.what());
      }
    }
    if (!changed || attempt == kMaxTries) return result;
  }
}

std::vector<CheckpointSummary> list(const fs::path& folder) {
  std::vector<CheckpointSummary> summaries;
  for (const ManifestFile& file : list_manifests(folder)) {
    CheckpointSummary s{.step = file.step};
    try {
      const Manifest m = load_manifest(file);
      s.total_bytes = m.total_bytes;
      s.num_tensors = static_cast<int64_t>(m.tensors.size());
      s.num_chunks = static_cast<int64_t>(m.chunks.size());
    } catch (const Error& e) {
      if (is_gone(file)) continue;
      s.error = e.what();
      s.error_code = e.code();
    }
    summaries.push_back(std::move(s));
  }
  return summaries;
}

VerifyResult verify(const fs::path& folder) {
  VerifyResult result;
  ChunkSizes unused = scan_chunks(folder);
  for (const auto& [id, size] : unused) {
    ++result.num_chunks;
    result.chunk_bytes += size;
  }
  for (const ManifestFile& file : list_manifests(folder)) {
    try {
      Checkpoint::open(folder, file.step).verify();
      for (const ChunkRef& chunk : load_manifest(file).chunks) unused.erase(chunk.id);
      result.good.push_back(file.step);
    } catch (const Error& e) {
      if (is_gone(file)) continue;
      result.refused.push_back(file.path.filename().string() + ": " + e.what());
    }
  }
  result.unused_chunks = static_cast<int64_t>(unused.size());
  std::error_code error;
  for (auto it = fs::directory_iterator(folder / "tmp", error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    ++result.temporaries;
  }
  return result;
}

}  // namespace ductile::ckpt
