#pragma once

#include <cerrno>
#include <chrono>
#include <optional>

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

// Tells a request to end from one that is made once more. Who hands a signal on may send it twice
// (`timeout` of coreutils sends it to the program and to its group): what comes within a second of
// the first one is still the same request.
class EndRequests {
 public:
  using Clock = std::chrono::steady_clock;

  // To be called for each signal. Whether it is another request than the first.
  bool repeats(Clock::time_point now = Clock::now()) {
    if (!first_) first_ = now;
    return now - *first_ > std::chrono::seconds(1);
  }
  bool any() const { return first_.has_value(); }

 private:
  std::optional<Clock::time_point> first_;
};

}  // namespace ductile::cli
