#include "ductile/run/lock.h"

#include <cerrno>
#include <sstream>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::run {

fs::path lock_file(const fs::path& run) { return run / "run.lock"; }

namespace {

std::string machine_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// "PID HOST DRIVER", as its holder wrote it; a pid of 0 where it has not yet.
struct Written {
  pid_t pid = 0;
  std::string host, driver;
};

Written read_lock(int fd) {
  char text[512] = {};
  const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
  std::istringstream words(n > 0 ? text : "");
  Written written;
  words >> written.pid >> written.host >> written.driver;
  return written;
}

[[noreturn]] void refuse(const fs::path& run, int fd) {
  const auto [pid, host, driver] = read_lock(fd);
  if (pid <= 0)
    fail(ErrorCode::conflict, "{}: another process is about to train in this run; see what runs",
         run.string());
  const bool here = host == machine_name();
  const std::string holder =
      here ? fmt::format("process {}", pid) : fmt::format("process {} of host {}", pid, host);
  if (here && ::kill(pid, 0) != 0 && errno == ESRCH)
    fail(ErrorCode::conflict,
         "{}: {} that trained in this run is gone, and its worker still saves and ends; try again "
         "in a moment",
         run.string(), holder);
  if (driver == RunLock::kTuner)
    fail(ErrorCode::conflict,
         "{0}: {1} drives this tuning session already; wait for its end, or let it save (kill -INT "
         "{2}) and go on with `ductile tune --resume {0}`",
         run.string(), holder, pid);
  if (driver == RunLock::kController)
    fail(ErrorCode::conflict,
         "{0}: a controller runs this job already ({1}); `ductile status {0}` shows it, `ductile "
         "resize {0} N` and `ductile preempt {0}` change it",
         run.string(), holder);
  fail(ErrorCode::conflict,
       "{}: {} trains in this run already; end it first (kill -INT {} lets it save)", run.string(),
       holder, pid);
}

}  // namespace

RunLock::RunLock(const fs::path& run, std::string_view driver) {
  const fs::path path = lock_file(run);
  // Whoever can open a file can hold its lock, another user too; older versions let all read it.
  fd_ = opened(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600), path.string());
  (void)::fchmod(fd(), 0600);  // refused where it is somebody else's
  if (::flock(fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail_errno(path.string() + ": flock", errno);
    refuse(run, fd());
  }
  // Only for the message above, so a failure (a full disk) does not matter.
  const std::string text = fmt::format("{} {} {}\n", ::getpid(), machine_name(), driver);
  if (::ftruncate(fd(), 0) == 0) {
    [[maybe_unused]] const ssize_t n = ::pwrite(fd(), text.data(), text.size(), 0);
  }
}

// Who holds it has it open: trying the lock instead would be in the way of somebody who begins.
std::optional<LockHolder> lock_holder(const fs::path& run) {
  const Descriptor fd(::open(lock_file(run).c_str(), O_RDONLY | O_CLOEXEC));
  struct stat file {};
  if (!fd || ::fstat(fd.get(), &file) != 0) return std::nullopt;
  const Written written = read_lock(fd.get());
  if (written.pid <= 0 || written.pid == ::getpid() || written.host != machine_name())
    return std::nullopt;
  std::error_code error;
  const fs::path folder = fs::path("/proc") / std::to_string(written.pid) / "fd";
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    struct stat open {};
    if (::stat(it->path().c_str(), &open) == 0 && open.st_dev == file.st_dev &&
        open.st_ino == file.st_ino)
      return LockHolder{written.pid, written.driver};
  }
  return std::nullopt;
}

}  // namespace ductile::run
