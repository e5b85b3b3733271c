#include <cerrno>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/cluster/lock_impl.h"

namespace ductile::cluster {

Descriptor lock_of(const fs::path& file) {
  // Beside what a symbolic link leads to.
  std::error_code unknown;
  const fs::path real = fs::weakly_canonical(file, unknown);
  const fs::path path = (unknown ? file : real).string() + ".lock";
  Descriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0) fail_errno(path.string(), errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail_errno(path.string(), errno);
    char pid[32] = {};
    const ssize_t n = ::pread(lock.get(), pid, sizeof pid - 1, 0);
    fail(ErrorCode::conflict, "{}: another server uses it{}; one at a time can", file.string(),
         n > 0 ? fmt::format(" (process {})", pid) : "");
  }
  const std::string pid = std::to_string(::getpid());  // for the message above alone
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0) {
  }
  return lock;
}

}  // namespace ductile::cluster
