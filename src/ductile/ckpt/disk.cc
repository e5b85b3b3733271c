#include "ductile/ckpt/disk.h"

#include <algorithm>
#include <cerrno>
#include <limits>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"

namespace ductile::ckpt {
namespace {

constexpr size_t kBlock = 4096;

int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) return -EIO;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return 0;
}

// Writes the whole blocks at the front without the page cache; returns how many bytes that were.
// Whatever it did not write (a file system without O_DIRECT, an error) is left to the usual path,
// which then reports the error.
size_t write_direct(int fd, std::span<const std::byte> bytes) {
  const size_t whole = bytes.size() / kBlock * kBlock;
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % kBlock == 0;
  if (whole == 0 || !aligned || ::lseek(fd, 0, SEEK_CUR) % static_cast<off_t>(kBlock) != 0)
    return 0;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) return 0;
  size_t done = 0;
  while (done < whole && done % kBlock == 0) {
    const ssize_t n = ::write(fd, bytes.data() + done, whole - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  ::fcntl(fd, F_SETFL, flags);
  return done;
}

class RealDisk final : public Disk {
 public:
  int open_new(const fs::path& path) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return fd < 0 ? -errno : fd;
  }

  int write(int fd, std::span<const std::byte> bytes) override {
    const int result = write_all(fd, bytes.subspan(write_direct(fd, bytes)));
    if (result == 0) ::sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);  // a hint; sync() decides
    return result;
  }

  int sync(int fd) override { return ::fsync(fd) != 0 ? -errno : 0; }

  int rename(const fs::path& from, const fs::path& to) override {
    return ::rename(from.c_str(), to.c_str()) != 0 ? -errno : 0;
  }

  int remove(const fs::path& path) override { return ::unlink(path.c_str()) != 0 ? -errno : 0; }

  int make_folder(const fs::path& path) override {
    return ::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST ? -errno : 0;
  }

  int sync_folder(const fs::path& path) override {
    const Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return fd ? sync(fd.get()) : -errno;
  }

  int64_t free_bytes(const fs::path& path) override {
    struct statvfs info {};
    if (::statvfs(path.c_str(), &info) != 0) return -errno;
    const uint64_t bytes = uint64_t{info.f_bavail} * info.f_frsize;
    return static_cast<int64_t>(std::min<uint64_t>(bytes, std::numeric_limits<int64_t>::max()));
  }
};

}  // namespace

Disk& real_disk() {
  static RealDisk disk;
  return disk;
}

}  // namespace ductile::ckpt
