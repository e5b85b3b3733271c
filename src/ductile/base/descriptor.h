#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile {

// Owns a file descriptor and closes it. All modules use this class.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = other.release();
    }
    return *this;
  }
  ~Descriptor() { close(); }

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }  // from now on the caller's
  void close() {
    if (fd_ >= 0) ::close(release());
  }

 private:
  int fd_ = -1;
};

// Owns the descriptor that a call returned: opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1").
// Throws, with the errno of the call, if the call failed.
inline Descriptor opened(int fd, const std::string& what) {
  if (fd < 0) fail_errno(what, errno);
  return Descriptor(fd);
}

}  // namespace ductile
