#pragma once

#include <cerrno>
#include <cstddef>
#include <vector>

#include <sys/socket.h>

namespace ductile::net {

// Sends as much of `bytes` as the socket takes without waiting, and takes it off their front.
// Returns 0, or errno where the connection broke, with `bytes` as they were.
inline int send_now(int socket, std::vector<std::byte>& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(done));
  return 0;
}

}  // namespace ductile::net
