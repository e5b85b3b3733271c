#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

// The socket's path through a descriptor of its folder: short, however deep the folder lies.
struct ShortPath {
  explicit ShortPath(const fs::path& folder)
      : fd(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    if (fd.get() < 0) fail_errno(folder.string(), errno);
    path = fmt::format("/proc/self/fd/{}/{}", fd.get(), kRequestSocket);
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  Descriptor fd;
  std::string path;
  sockaddr_un address{};
};

Descriptor unix_socket(int flags) {
  return opened(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0), "unix socket");
}

}  // namespace

Descriptor listen_unix(const fs::path& folder) {
  const ShortPath at(folder);
  Descriptor fd = unix_socket(SOCK_NONBLOCK);
  unlink(at.path.c_str());
  // The file gets the mode of the socket. The process's umask is no way to that: other threads make
  // folders, and processes that keep it.
  if (fchmod(fd.get(), 0600) != 0) fail_errno((folder / kRequestSocket).string(), errno);
  if (bind(fd.get(), at.get(), sizeof at.address) != 0)
    fail_errno((folder / kRequestSocket).string(), errno);
  if (listen(fd.get(), 16) != 0) {
    const int refused = errno;
    unlink(at.path.c_str());
    fail_errno((folder / kRequestSocket).string(), refused);
  }
  return fd;
}

namespace {

enum class Answer { connected, nobody, no_room };

// A connect() that waits would wait for ever where the listener is stopped.
Answer try_connect(const fs::path& folder, Descriptor& fd) {
  const ShortPath at(folder);
  fd = unix_socket(SOCK_NONBLOCK);
  if (connect(fd.get(), at.get(), sizeof at.address) == 0) return Answer::connected;
  if (errno == EAGAIN) return Answer::no_room;
  if (errno == ENOENT || errno == ECONNREFUSED) return Answer::nobody;
  fail_errno((folder / kRequestSocket).string(), errno);
}

}  // namespace

Descriptor connect_unix(const fs::path& folder, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    Descriptor fd;
    const Answer answer = try_connect(folder, fd);
    if (answer == Answer::connected) {
      fcntl(fd.get(), F_SETFL, 0);
      return fd;
    }
    if (answer == Answer::nobody) return {};
    if (std::chrono::steady_clock::now() >= end)
      fail(
          ErrorCode::deadline,
          "{}: its controller took no request in {} ms, and others wait; is it stopped (kill -CONT "
          "wakes it up)?",
          folder.string(), patience.count());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool is_listening(const fs::path& folder) {
  Descriptor fd;
  return try_connect(folder, fd) != Answer::nobody;
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace ductile::server
