#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/catalog_impl.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/folder_lock_impl.h"
#include "ductile/ckpt/garbage_impl.h"

namespace ductile::ckpt {
namespace {

void remove_or_throw(Disk& disk, const fs::path& path) {
  const int result = disk.remove(path);
  if (result < 0 && result != -ENOENT) fail_errno(path.string() + ": remove", -result);
}

bool complete(const Manifest& manifest, const ChunkSizes& sizes) {
  return std::all_of(manifest.chunks.begin(), manifest.chunks.end(), [&](const ChunkRef& chunk) {
    const auto it = sizes.find(chunk.id);
    return it != sizes.end() && it->second == chunk.size;
  });
}

}  // namespace

Garbage find_garbage(const fs::path& folder, int64_t keep, int64_t newest,
                     const std::function<bool(int64_t step)>& counts) {
  Garbage garbage;
  const ChunkSizes sizes = scan_chunks(folder);
  int64_t kept = 0;
  for (const ManifestFile& file : list_manifests(folder)) {
    const bool later = file.step > newest;
    bool good = false;
    try {
      const Manifest manifest = load_manifest(file);
      good = !later && kept < keep && counts(file.step) && complete(manifest, sizes);
      if (good || later) {
        for (const ChunkRef& chunk : manifest.chunks) garbage.live.insert(chunk.id);
      }
    } catch (Error& e) {
      // Only what is known to be broken may go; a failing disk or a newer format stops us here.
      if (e.code() != ErrorCode::data_loss) {
        e.with_context(file.path.string());
        throw;
      }
    }
    if (good) {
      ++kept;
    } else if (!later) {
      garbage.manifests.push_back(file.path);
    }
  }
  if (kept == 0 && !garbage.manifests.empty()) return {};
  for (const auto& [id, size] : sizes) {
    if (!garbage.live.contains(id)) garbage.chunks.push_back({id, size});
  }
  return garbage;
}

int64_t remove_garbage(Disk& disk, const fs::path& folder, const Garbage& garbage) {
  int64_t freed = 0;
  for (const fs::path& path : garbage.manifests) {
    std::error_code error;
    const uintmax_t size = fs::file_size(path, error);
    remove_or_throw(disk, path);
    if (!error) freed += static_cast<int64_t>(size);
  }
  if (!garbage.manifests.empty()) {
    const int synced = disk.sync_folder(folder / "manifests");
    if (synced < 0) fail_errno((folder / "manifests").string() + ": fsync", -synced);
  }
  for (const ChunkRef& chunk : garbage.chunks) {
    remove_or_throw(disk, chunk_path(folder, chunk.id));
    freed += chunk.size;
  }
  return freed;
}

int64_t remove_temporaries(Disk& disk, const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const char* place : {"tmp", "pending"}) {
    for (auto it = fs::directory_iterator(folder / place, error);
         !error && it != fs::directory_iterator(); it.increment(error)) {
      files.push_back(it->path());
    }
  }
  int64_t freed = 0;
  for (const fs::path& file : files) {
    const uintmax_t size = fs::file_size(file, error);
    remove_or_throw(disk, file);
    if (!error) freed += static_cast<int64_t>(size);
  }
  return freed;
}

void remove_leftovers(const fs::path& folder) {
  if (!is_folder(folder / "manifests")) return;
  const FolderLock lock(folder);
  remove_temporaries(real_disk(), folder);
}

int64_t collect_garbage(const fs::path& folder, int64_t keep) {
  if (keep < 1) {
    fail(ErrorCode::invalid_argument, "keep = {}: at least one checkpoint must be kept", keep);
  }
  if (!is_folder(folder / "manifests")) return 0;
  const FolderLock lock(folder);
  const int64_t freed = remove_temporaries(real_disk(), folder);
  const Garbage garbage =
      find_garbage(folder, keep, std::numeric_limits<int64_t>::max(), [](int64_t) { return true; });
  return freed + remove_garbage(real_disk(), folder, garbage);
}

}  // namespace ductile::ckpt
