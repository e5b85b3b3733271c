#pragma once

#include <cerrno>

#include <signal.h>
#include <sys/signalfd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"

namespace ductile::cli {

// The signals this process reads from a descriptor while workers run; as before at the end.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGTSTP, SIGCONT}) sigaddset(&held_, s);
    if (sigprocmask(SIG_BLOCK, &held_, &before_) != 0) fail_errno("sigprocmask", errno);
    fd_ = Descriptor(signalfd(-1, &held_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (fd_.get() < 0) fail_errno("signalfd", errno);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() {
    fd_.close();
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t held_{}, before_{};
  Descriptor fd_;
};

}  // namespace ductile::cli
