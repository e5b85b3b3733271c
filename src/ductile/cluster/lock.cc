#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/cluster/lock_impl.h"

namespace ductile::cluster {
namespace {

constexpr std::chrono::seconds kPatience{20};

// The number of the process that the lock's file names; empty: none.
std::string holder_of(const Descriptor& lock) {
  char pid[32] = {};
  const ssize_t n = ::pread(lock.get(), pid, sizeof pid - 1, 0);
  return n > 0 ? pid : "";
}

bool is_gone(const std::string& pid) {
  const long number = std::strtol(pid.c_str(), nullptr, 10);
  return number > 0 && ::kill(static_cast<pid_t>(number), 0) != 0 && errno == ESRCH;
}

}  // namespace

Descriptor lock_of(const fs::path& file) {
  // Beside what a symbolic link leads to.
  std::error_code unknown;
  const fs::path real = fs::weakly_canonical(file, unknown);
  const fs::path path = (unknown ? file : real).string() + ".lock";
  Descriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0) fail_errno(path.string(), errno);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail_errno(path.string(), errno);
    // A process that the holder was just starting when it was killed has the lock, too, until it
    // becomes another program.
    const std::string holder = holder_of(lock);
    if (!is_gone(holder) || std::chrono::steady_clock::now() > deadline)
      fail(ErrorCode::conflict, "{}: another server uses it{}; one at a time can", file.string(),
           holder.empty() ? "" : fmt::format(" (process {})", holder));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::string pid = std::to_string(::getpid());  // for the message above alone
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0) {
  }
  return lock;
}

}  // namespace ductile::cluster
