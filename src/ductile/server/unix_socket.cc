#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

using process::Descriptor;

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
  return process::opened(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0), "unix socket");
}

}  // namespace

Descriptor listen_unix(const fs::path& folder) {
  const ShortPath at(folder);
  Descriptor fd = unix_socket(SOCK_NONBLOCK);
  unlink(at.path.c_str());
  const mode_t before = umask(0177);
  const int bound = bind(fd.get(), at.get(), sizeof at.address);
  const int error = errno;
  umask(before);
  if (bound != 0) fail_errno((folder / kRequestSocket).string(), error);
  if (listen(fd.get(), 16) != 0) {
    const int refused = errno;
    unlink(at.path.c_str());
    fail_errno((folder / kRequestSocket).string(), refused);
  }
  return fd;
}

Descriptor connect_unix(const fs::path& folder) {
  const ShortPath at(folder);
  Descriptor fd = unix_socket(0);
  if (connect(fd.get(), at.get(), sizeof at.address) == 0) return fd;
  if (errno == ENOENT || errno == ECONNREFUSED) return {};
  fail_errno((folder / kRequestSocket).string(), errno);
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace ductile::server
