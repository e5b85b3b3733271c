#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/cluster/limits_impl.h"
#include "ductile/cluster/listeners_impl.h"
#include "ductile/net/peer_user.h"

namespace ductile::cluster {
namespace {

constexpr int kFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

}  // namespace

Descriptor listen_unix(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.native().size() >= sizeof address.sun_path)
    fail(ErrorCode::invalid_argument,
         "{}: a socket's path has at most {} bytes; choose a shorter one", path.string(),
         sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, path.c_str(), path.native().size());
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  struct stat is {};
  if (::lstat(path.c_str(), &is) == 0) {
    if (!S_ISSOCK(is.st_mode))
      fail(ErrorCode::conflict, "{}: is there and is no socket; choose another path",
           path.string());
    // Without waiting: who does not accept is there all the same.
    const Descriptor probe(::socket(AF_UNIX, kFlags, 0));
    if (::connect(probe.get(), where, sizeof address) == 0 || errno == EAGAIN)
      fail(ErrorCode::conflict, "{}: another process serves it", path.string());
    if (errno == ECONNREFUSED) ::unlink(path.c_str());
  }
  Descriptor out(::socket(AF_UNIX, kFlags, 0));
  if (out.get() < 0 || ::bind(out.get(), where, sizeof address) != 0)
    fail_errno(path.string(), errno);
  // Who may do what is decided by who connects.
  if (::chmod(path.c_str(), 0666) != 0 || ::listen(out.get(), SOMAXCONN) != 0)
    fail_errno(path.string(), errno);
  return out;
}

Descriptor listen_loopback(uint16_t port, bool or_any, uint16_t* got) {
  Descriptor out(::socket(AF_INET, kFlags, 0));
  const int on = 1;
  ::setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  bool bound = out.get() >= 0 && ::bind(out.get(), where, size) == 0;
  if (!bound && or_any && errno == EADDRINUSE) {
    address.sin_port = 0;
    bound = ::bind(out.get(), where, size) == 0;
  }
  if (!bound || ::listen(out.get(), SOMAXCONN) != 0 || ::getsockname(out.get(), where, &size) != 0)
    fail_errno(fmt::format("127.0.0.1:{}", port), errno);
  *got = ntohs(address.sin_port);
  return out;
}

Descriptor listen_beyond(const net::Address& address, uint16_t* got) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found);
  if (failed != 0)
    fail(ErrorCode::invalid_argument, "{}: no address of this machine: {}", address.to_string(),
         ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, ::freeaddrinfo);
  Descriptor out(::socket(found->ai_family, kFlags, 0));
  const int on = 1;
  ::setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (!out || ::bind(out.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(out.get(), SOMAXCONN) != 0 ||
      ::getsockname(out.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    fail_errno(address.to_string(), errno);
  *got = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return out;
}

std::string stranger_at(int connection) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(connection, reinterpret_cast<sockaddr*>(&peer), &size) != 0)
    return std::string(1, kStranger);
  char text[INET6_ADDRSTRLEN] = {};
  if (peer.ss_family == AF_INET6) {
    auto& address = reinterpret_cast<sockaddr_in6&>(peer).sin6_addr;
    const bool is_four = IN6_IS_ADDR_V4MAPPED(&address);
    if (!is_four) std::memset(&address.s6_addr[8], 0, 8);
    ::inet_ntop(AF_INET6, &address, text, sizeof text);
    return kStranger + std::string(text);
  }
  const auto& theirs = reinterpret_cast<const sockaddr_in&>(peer);
  const bool here = (ntohl(theirs.sin_addr.s_addr) >> 24) == 127;
  if (here) {
    if (const auto user = net::user_at_other_end(connection))
      return fmt::format("{}user {}", kStranger, *user);
  }
  ::inet_ntop(AF_INET, &theirs.sin_addr, text, sizeof text);
  return kStranger + std::string(text);
}

}  // namespace ductile::cluster
