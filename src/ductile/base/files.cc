#include "ductile/base/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/paths.h"

namespace ductile {
namespace {

Descriptor open_file(const fs::path& path, int flags, mode_t mode = 0644) {
  return opened(::open(path.c_str(), flags | O_CLOEXEC, mode), path.string());
}

[[noreturn]] void refuse(const fs::path& path) {
  fail(ErrorCode::invalid_argument, "{}: is {}, not a file", path.string(), kind_text(path));
}

// A regular file; a FIFO is not waited for, and a device not touched.
struct RegularFile {
  explicit RegularFile(const fs::path& path)
      : fd(open_file(kind_of(path) == FileKind::other ? (refuse(path), path) : path,
                     O_RDONLY | O_NONBLOCK)) {
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0) fail_errno(path.string(), errno);
    if (!S_ISREG(info.st_mode)) refuse(path);
    size = static_cast<size_t>(info.st_size);
  }
  Descriptor fd;
  size_t size = 0;
};

}  // namespace

namespace {

// Whoever opens it waits until somebody writes there, perhaps for ever. A pipe without a name, as
// <(COMMAND) and standard input are, has a writer already, and ends with it.
bool is_named_fifo(const fs::path& path) {
  struct stat info {};
  struct statfs where {};
  return ::stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode) &&
         ::statfs(path.c_str(), &where) == 0 && where.f_type != PIPEFS_MAGIC;
}

std::string text_of_all(const fs::path& path, size_t most, bool patient) {
  constexpr int kSilence = 300;  // seconds
  const Descriptor fd = open_file(path, O_RDONLY);
  std::string text;
  struct stat info {};
  const bool known = ::fstat(fd.get(), &info) == 0;
  if (known && info.st_size > 0) {
    // A file may be said to be of any size, with holes.
    text.reserve(std::min(static_cast<size_t>(info.st_size), most) + 1);
  }
  const bool may_be_silent = !patient && known && S_ISFIFO(info.st_mode);
  char buffer[1 << 16];
  while (true) {
    pollfd ready{fd.get(), POLLIN, 0};
    if (may_be_silent && ::poll(&ready, 1, kSilence * 1000) == 0)
      fail(ErrorCode::deadline, "{}: nothing has come from this pipe for {} s; name a file",
           path.string(), kSilence);
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path.string() + ": read", errno);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > most)
      fail(ErrorCode::invalid_argument, "{}: more than {} bytes; at most those are accepted",
           path.string(), most);
  }
}

}  // namespace

std::string read_file(const fs::path& path) {
  return text_of_all(path, std::numeric_limits<size_t>::max(), /*patient=*/true);
}

std::string read_text(const fs::path& path, size_t most) {
  if (is_named_fifo(path))
    fail(ErrorCode::invalid_argument,
         "{}: is a FIFO, not a file, and may never end; name a file, or write <(COMMAND) there",
         path.string());
  return text_of_all(path, most, /*patient=*/false);
}

void read_regular_file(const fs::path& path, size_t max_bytes, std::vector<std::byte>& out) {
  const RegularFile file(path);
  if (file.size > max_bytes) {
    fail(ErrorCode::data_loss, "{}: {} bytes, at most {} are accepted", path.string(), file.size,
         max_bytes);
  }
  out.resize(file.size);
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::read(file.fd.get(), out.data() + done, out.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path.string() + ": read", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  out.resize(done);
}

void write_file_atomic(const fs::path& path, std::span<const std::byte> bytes) {
  fs::path temporary = path;
  temporary += ".tmp" + std::to_string(::getpid());
  try {
    const Descriptor fd = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_errno(path.string() + ": write", errno);
      done += static_cast<size_t>(n);
    }
    if (::fsync(fd.get()) != 0) fail_errno(path.string() + ": fsync", errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      fail_errno(path.string() + ": rename", errno);
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  fsync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void write_file_atomic(const fs::path& path, std::string_view text) {
  write_file_atomic(path, std::as_bytes(std::span(text.data(), text.size())));
}

void fsync_folder(const fs::path& folder) {
  const Descriptor fd = open_file(folder, O_RDONLY | O_DIRECTORY);
  if (::fsync(fd.get()) != 0) fail_errno(folder.string() + ": fsync", errno);
}

MappedFile::MappedFile(const fs::path& path) {
  const RegularFile file(path);
  size_ = file.size;
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd.get(), 0);
  if (mapped == MAP_FAILED) fail_errno(path.string() + ": mmap", errno);
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

TempFolder::TempFolder(std::string_view prefix) {
  const char* root = std::getenv("TMPDIR");
  std::string pattern =
      std::string(root != nullptr ? root : "/tmp") + "/" + std::string(prefix) + "-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) fail_errno(pattern, errno);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

UnnamedFile::UnnamedFile(std::string_view text) {
  Descriptor file = opened(::memfd_create("ductile", MFD_CLOEXEC), "memfd_create");
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno != EINTR) fail_errno("a file in memory", errno);
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  fd_ = file.release();
}

UnnamedFile::~UnnamedFile() { ::close(fd_); }

fs::path UnnamedFile::path() const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_);
}

}  // namespace ductile
