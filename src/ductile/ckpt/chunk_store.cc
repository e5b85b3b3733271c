#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/ckpt/chunk_store_impl.h"

namespace ductile::ckpt {
namespace {

// The disk or the system refuses now; that says nothing about the bytes, which may be whole.
[[noreturn]] void fail_unreadable(const fs::path& path, const char* what, int error) {
  fail(ErrorCode::unavailable, "{}: the chunk cannot be read now: {}: {}", path.string(), what,
       std::strerror(error));
}

}  // namespace

fs::path chunk_path(const fs::path& folder, const ChunkId& id) {
  const std::string hex = id.hex();
  return folder / "chunks" / hex.substr(0, 2) / hex;
}

void check_chunks(const fs::path& folder, std::span<const ChunkRef> chunks) {
  for (const ChunkRef& chunk : chunks) {
    const fs::path path = chunk_path(folder, chunk.id);
    std::error_code error;
    const uintmax_t size = fs::file_size(path, error);
    if (error == std::errc::no_such_file_or_directory)
      fail(ErrorCode::data_loss, "its chunk {} is missing; save again", path.string());
    if (error) fail_errno(path.string(), error.value());
    if (size != static_cast<uintmax_t>(chunk.size))
      fail(ErrorCode::data_loss, "its chunk {} has {} of {} bytes; save again", path.string(), size,
           chunk.size);
  }
}

void read_chunk(const fs::path& folder, const ChunkRef& chunk, std::span<std::byte> out) {
  const fs::path path = chunk_path(folder, chunk.id);
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT) fail(ErrorCode::data_loss, "{}: the chunk is missing", path.string());
    fail_unreadable(path, "open", errno);
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail_unreadable(path, "stat", errno);
  if (info.st_size != chunk.size) {
    fail(ErrorCode::data_loss, "{}: the chunk has {} bytes where {} were written", path.string(),
         static_cast<int64_t>(info.st_size), chunk.size);
  }
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::read(fd.get(), out.data() + done, out.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_unreadable(path, "read", errno);
    if (n == 0) {
      fail(ErrorCode::data_loss, "{}: the chunk ends at byte {}", path.string(), done);
    }
    done += static_cast<size_t>(n);
  }
  if (hash_bytes(out) != chunk.id) {
    fail(ErrorCode::data_loss, "{}: the chunk was altered: its content does not match its name",
         path.string());
  }
}

ChunkSizes scan_chunks(const fs::path& folder) {
  ChunkSizes sizes;
  std::error_code error;
  fs::directory_iterator folders(folder / "chunks", error);
  if (error == std::errc::no_such_file_or_directory) return sizes;
  if (error) fail_errno((folder / "chunks").string(), error.value());
  try {
    for (const fs::directory_entry& sub : folders) {
      if (!sub.is_directory()) continue;
      for (const fs::directory_entry& file : fs::directory_iterator(sub.path())) {
        ChunkId id;
        const std::string name = file.path().filename().string();
        if (!parse_chunk_id(name, id) || file.path() != chunk_path(folder, id)) continue;
        if (file.is_regular_file()) sizes[id] = static_cast<int64_t>(file.file_size());
      }
    }
  } catch (const fs::filesystem_error& e) {
    fail_errno(e.path1().string(), e.code().value());
  }
  return sizes;
}

}  // namespace ductile::ckpt
