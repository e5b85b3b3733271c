#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::run {

// The right to train in a run directory. One controller has it: that of `ductile train`, or one in
// the process that trains. It is held by a lock on the file `run.lock` from construction to
// destruction, or until the process, and those to which it gave fd(), have died in any way.
class RunLock {
 public:
  static constexpr std::string_view kLocal = "local";
  static constexpr std::string_view kController = "controller";
  static constexpr std::string_view kTuner = "tuner";  // of a tuning session, not of a run

  // `driver` says what this process does, for the message to another process. If somebody else
  // trains there, throws conflict, which names the holder and what to do. Changes nothing else.
  RunLock(const fs::path& run, std::string_view driver);

  // It is closed on exec; a child that keeps it open also holds the lock.
  int fd() const { return fd_.get(); }

 private:
  Descriptor fd_;
};

// A process of this machine that trains in a run directory.
struct LockHolder {
  pid_t pid = 0;
  std::string driver;  // RunLock::kLocal, kController or kTuner
};

fs::path lock_file(const fs::path& run);

// Who holds the lock of a run here, without touching the lock: nobody who takes it meanwhile is
// refused. Nothing where nobody does, or where that cannot be seen (another host, another user).
std::optional<LockHolder> lock_holder(const fs::path& run);

}  // namespace ductile::run
