#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
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

constexpr std::string_view kStops = " stops";

// What the lock's file says of the process that has it.
struct LockedBy {
  pid_t process = 0;  // 0: nothing
  bool stops = false;
};

LockedBy holder_of(const Descriptor& lock) {
  char text[64] = {};
  if (::pread(lock.get(), text, sizeof text - 1, 0) <= 0) return {};
  const long number = std::strtol(text, nullptr, 10);
  if (number <= 0) return {};
  return {static_cast<pid_t>(number), std::string_view(text).ends_with(kStops)};
}

void write_holder(const Descriptor& lock, std::string_view more) {  // for messages alone
  const std::string text = std::to_string(::getpid()).append(more);
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), text.data(), text.size(), 0) < 0) {
  }
}

bool is_gone(const LockedBy& holder) {
  return holder.process > 0 && ::kill(holder.process, 0) != 0 && errno == ESRCH;
}

[[noreturn]] void refuse(const fs::path& file, const LockedBy& holder) {
  const std::string who =
      holder.process > 0 ? fmt::format(" (process {})", holder.process) : std::string();
  if (holder.stops)
    fail(ErrorCode::conflict,
         "{0}: another server uses it{1}, which was told to stop and saves its jobs. Wait until it "
         "has ended, or end it without saving: kill {2} (and if that does not help: kill -9 {2}); "
         "the next one goes on with its jobs",
         file.string(), who, holder.process);
  fail(ErrorCode::conflict,
       "{}: another server uses it{}; one at a time can. Submit jobs to that one, stop it{}, or "
       "give another folder",
       file.string(), who,
       holder.process > 0 ? fmt::format(" (kill {})", holder.process) : std::string());
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
    const LockedBy holder = holder_of(lock);
    if (!is_gone(holder) || std::chrono::steady_clock::now() > deadline) refuse(file, holder);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  write_holder(lock, "");
  return lock;
}

void note_stop_in(const Descriptor& lock) { write_holder(lock, kStops); }

}  // namespace ductile::cluster
