#include "ductile/run/append_file.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::run {

AppendFile::AppendFile(const fs::path& path, int flags)
    : path_(path),
      fd_(opened(::open(path.c_str(), flags | O_APPEND | O_CLOEXEC, 0666), path.string())) {}

void AppendFile::append(std::string_view bytes) {
  const ssize_t n = write(bytes);
  if (n == static_cast<ssize_t>(bytes.size())) return;
  const int error = n < 0 ? errno : ENOSPC;
  struct stat info {};
  if (n > 0 && (::fstat(fd(), &info) != 0 || ::ftruncate(fd(), info.st_size - n) != 0)) {
    fail_errno(path_.string() + ": write, and its torn end could not be removed", error);
  }
  fail_errno(path_.string() + ": write", error);
}

void AppendFile::append_shared(std::string_view bytes) {
  const ssize_t n = write(bytes);
  if (n == static_cast<ssize_t>(bytes.size())) return;
  fail_errno(path_.string() + ": write", n < 0 ? errno : ENOSPC);
}

// A regular file takes less than all only where its disk is full.
ssize_t AppendFile::write(std::string_view bytes) {
  ssize_t n = 0;
  do {
    n = ::write(fd(), bytes.data(), bytes.size());
  } while (n < 0 && errno == EINTR);
  return n;
}

void AppendFile::sync() {
  // EINVAL: a pipe or device, which holds nothing back.
  if (::fdatasync(fd()) != 0 && errno != EINVAL) fail_errno(path_.string() + ": fsync", errno);
}

}  // namespace ductile::run
