#include "ductile/ckpt/publish.h"

#include <cerrno>
#include <system_error>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/catalog_impl.h"
#include "ductile/ckpt/folder_lock_impl.h"
#include "ductile/ckpt/garbage_impl.h"
#include "ductile/ckpt/pending_impl.h"

namespace ductile::ckpt {
namespace {

// The manifest at `path`, when it and all its chunks are there.
void check_complete(const fs::path& folder, int64_t step, const fs::path& path) {
  try {
    check_chunks(folder, load_manifest({step, path}).chunks);
  } catch (Error& e) {
    e.with_context(path.string());
    throw;
  }
}

bool is_there(const fs::path& path) { return kind_of(path) != FileKind::none; }

void check(int result, const fs::path& path, const char* what) {
  if (result < 0) fail_errno(path.string() + ": " + what, -result);
}

int64_t clean(Disk& disk, const fs::path& folder, int64_t step, int64_t keep) {
  int64_t freed = 0;
  const PendingFiles pending = find_pending(folder, step);
  for (const fs::path& path : pending.stale) {
    std::error_code error;
    const uintmax_t size = fs::file_size(path, error);
    const int result = disk.remove(path);
    if (result < 0 && result != -ENOENT) check(result, path, "remove");
    if (!error && result >= 0) freed += static_cast<int64_t>(size);
  }
  Garbage garbage = find_garbage(folder, keep, step, [](int64_t) { return true; });
  // Looked at after the chunks were listed: what a writer has begun since is not in that list, or
  // named by its intent.
  const ChunkIds needed = find_pending(folder, step).needed;
  std::erase_if(garbage.chunks, [&](const ChunkRef& c) {
    return pending.needed.contains(c.id) || needed.contains(c.id);
  });
  return freed + remove_garbage(disk, folder, garbage);
}

}  // namespace

PublishResult publish(const fs::path& folder, int64_t step, std::string_view tag,
                      const PublishOptions& options) {
  if (options.keep < 1)
    fail(ErrorCode::invalid_argument, "checkpoint.keep is {}; at least 1", options.keep);
  check_tag(tag);
  Disk& disk = options.disk != nullptr ? *options.disk : real_disk();
  const fs::path from = pending_path(folder, step, tag);
  const fs::path to = manifest_path(folder, step);
  if (!is_there(from) && !is_there(to)) {
    fail(ErrorCode::not_found,
         "{}: no checkpoint of step {} was written under the tag {}; the writer was stopped, or a "
         "later one counts already: save again",
         folder.string(), step, tag);
  }
  const FolderLock lock(folder);
  PublishResult result;
  if (is_there(from)) {
    check_complete(folder, step, from);
    check(disk.make_folder(to.parent_path()), to.parent_path(), "mkdir");
    check(disk.sync_folder(folder), folder, "fsync");
    check(disk.rename(from, to), to, "rename");
    if (const int synced = disk.sync_folder(to.parent_path()); synced < 0) {
      disk.rename(to, from);  // what a crash may undo does not count
      check(synced, to.parent_path(), "fsync");
    }
  } else {
    check_complete(folder, step, to);
    result.was_published = true;
    check(disk.sync_folder(to.parent_path()), to.parent_path(), "fsync");
  }
  try {
    result.freed_bytes = clean(disk, folder, step, options.keep);
  } catch (const std::exception& e) {
    result.warning = e.what();
  }
  return result;
}

}  // namespace ductile::ckpt
