#pragma once

#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/server/launcher.h"

namespace ductile::server {

// What a launcher has to tell, and one descriptor that is readable while it may have something.
class LauncherEvents {
 public:
  LauncherEvents()
      : epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
        ready_(opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
    watch(ready_.get());
  }

  int fd() const { return epoll_.get(); }
  // fd() is readable while `fd` is; until that is closed.
  void watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail_errno("epoll_ctl", errno);
  }

  // For the take() under way.
  void add(LauncherEvent event) { events_.push_back(std::move(event)); }
  // A process that is not there: nothing else would wake the controller.
  void gone(control::WorkerId id) {
    events_.emplace_back(control::WorkerExited{id, -1, 0});
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(ready_.get(), &one, sizeof one);
  }
  std::vector<LauncherEvent> take() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = ::read(ready_.get(), &count, sizeof count);
    return std::exchange(events_, {});
  }

 private:
  Descriptor epoll_;
  Descriptor ready_;  // of gone()
  std::vector<LauncherEvent> events_;
};

}  // namespace ductile::server
