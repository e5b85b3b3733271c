#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/ckpt/folder_lock_impl.h"

namespace ductile::ckpt {

FolderLock::FolderLock(const fs::path& folder) {
  const fs::path path = folder / "lock";
  // Whoever can open a file can hold its lock, another user too; older versions let all read it.
  fd_ = opened(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600), path.string());
  (void)::fchmod(fd_.get(), 0600);  // refused where it is somebody else's
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    char holder[32] = {};
    const ssize_t n = ::pread(fd_.get(), holder, sizeof holder - 1, 0);
    if (error != EWOULDBLOCK) fail_errno(path.string() + ": flock", error);
    fail(ErrorCode::conflict,
         "{}: process {} is saving checkpoints into this folder; stop it, or choose another folder",
         folder.string(), n > 0 ? holder : "(unknown)");
  }
  // Only for the message above, so a failure (a full disk) does not matter.
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(fd_.get(), 0) == 0) {
    [[maybe_unused]] const ssize_t n = ::pwrite(fd_.get(), pid.data(), pid.size(), 0);
  }
}

}  // namespace ductile::ckpt
