#include "ductile/ckpt/join.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/paths.h"
#include "ductile/ckpt/catalog_impl.h"
#include "ductile/ckpt/pending_impl.h"

namespace ductile::ckpt {
namespace {

void require(int result, const fs::path& path, const char* what) {
  if (result < 0) fail_errno(path.string() + ": " + what, -result);
}

// The manifest that the writer with this tag left.
Manifest part_of(const fs::path& folder, int64_t step, const std::string& tag) {
  const fs::path path = pending_path(folder, step, tag);
  try {
    return load_manifest({step, path});
  } catch (Error& e) {
    e.with_context(path.string());
    throw;
  }
}

// As a writer leaves its manifest: under its name only once it is durable.
void write_pending(Disk& disk, const fs::path& folder, int64_t step, std::string_view tag,
                   std::string_view text) {
  const fs::path intent = intent_path(folder, step, tag);
  const fs::path pending = pending_path(folder, step, tag);
  try {
    const int fd = disk.open_new(intent);
    require(fd, intent, "create");
    const Descriptor file(fd);
    require(disk.write(fd, std::as_bytes(std::span(text))), intent, "write");
    require(disk.sync(fd), intent, "fsync");
    require(disk.rename(intent, pending), pending, "rename");
  } catch (...) {
    disk.remove(intent);
    throw;
  }
  require(disk.sync_folder(pending.parent_path()), pending.parent_path(), "fsync");
}

}  // namespace

bool parts_are_there(const fs::path& folder, int64_t step, std::span<const std::string> tags) {
  return std::ranges::all_of(tags, [&](const std::string& tag) {
    return kind_of(pending_path(folder, step, tag)) == FileKind::file;
  });
}

int64_t join_parts(const fs::path& folder, int64_t step, std::span<const std::string> tags,
                   int64_t num_tensors, std::string_view tag, const nlohmann::json& state,
                   Disk* disk) {
  check_tag(tag);
  std::vector<ChunkRef> chunks;
  std::vector<TensorInfo> tensors;
  std::unordered_set<std::string> names;
  int64_t bytes = 0;
  for (const std::string& part_tag : tags) {
    Manifest part = part_of(folder, step, part_tag);
    for (TensorInfo& tensor : part.tensors) {
      if (!names.insert(tensor.name).second) {
        fail(ErrorCode::conflict, "{}: tensor {} is in another part of the checkpoint, too",
             pending_path(folder, step, part_tag).string(), tensor.name);
      }
      tensor.offset += bytes;
      tensors.push_back(std::move(tensor));
    }
    chunks.insert(chunks.end(), part.chunks.begin(), part.chunks.end());
    bytes += part.total_bytes;
  }
  if (std::ssize(tensors) != num_tensors) {
    fail(ErrorCode::conflict, "{}: the parts of the checkpoint of step {} hold {} of {} tensors",
         folder.string(), step, tensors.size(), num_tensors);
  }
  const std::string text =
      manifest_text(step, dump_json_exactly(state, "the checkpoint's state"), chunks, tensors);
  write_pending(disk != nullptr ? *disk : real_disk(), folder, step, tag, text);
  return bytes;
}

}  // namespace ductile::ckpt
