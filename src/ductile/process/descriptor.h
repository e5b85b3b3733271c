#pragma once

#include <cerrno>
#include <utility>

#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::process {

// A file descriptor with an owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// What a call gave: opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1"). Throws, with the errno
// of the call, where it gave none.
inline Descriptor opened(int fd, const char* what) {
  if (fd < 0) fail_errno(what, errno);
  return Descriptor(fd);
}

}  // namespace ductile::process
