#include "ductile/net/peer_user.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "ductile/base/descriptor.h"

namespace ductile::net {
namespace {

struct PeerEnd {
  uint16_t port = 0;  // both in the order of the network
  uint32_t address[4] = {};
};

std::optional<PeerEnd> end_of(const sockaddr_storage& from) {
  PeerEnd out;
  if (from.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(from);
    out.port = four.sin_port;
    out.address[0] = four.sin_addr.s_addr;
    return out;
  }
  if (from.ss_family != AF_INET6) return std::nullopt;
  const auto& six = reinterpret_cast<const sockaddr_in6&>(from);
  out.port = six.sin6_port;
  std::memcpy(out.address, &six.sin6_addr, sizeof out.address);
  return out;
}

// Where the kernel takes no questions of that kind, as in some containers: its list of connections.
std::optional<uid_t> user_in_list(const PeerEnd& ours, const PeerEnd& theirs) {
  const auto named = [](const PeerEnd& end) {
    return fmt::format("{:08X}:{:04X}", end.address[0], ntohs(end.port));
  };
  const std::string own = named(theirs), other = named(ours);
  std::ifstream list("/proc/self/net/tcp");
  for (std::string line; std::getline(list, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, again, timeout, inode;
    uid_t user = 0;
    if (words >> number >> local >> remote >> state >> queues >> timer >> again >> user >>
            timeout >> inode &&
        local == own && remote == other && inode != "0")  // closed: the kernel says root of it
      return user;
  }
  return std::nullopt;
}

// What the kernel knows of one end of a connection.
struct Found {
  enum class Kind : uint8_t {
    unknown,  // it takes no questions of that kind, as in some containers, or not now
    nothing,  // there is no such end; or it takes none, which it says in the same way
    closed,   // it has forgotten whose it was, and says root
    open,
  };
  Kind kind = Kind::unknown;
  uid_t user = 0;  // of an open one
};

// Of the end at `own`, whose other end is at `other`.
Found ask_for(sa_family_t family, const PeerEnd& own, const PeerEnd& other) {
  struct {
    nlmsghdr head;
    inet_diag_req_v2 body;
  } ask{};
  ask.head.nlmsg_len = sizeof ask;
  ask.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.head.nlmsg_flags = NLM_F_REQUEST;
  ask.body.sdiag_family = static_cast<uint8_t>(family);
  ask.body.sdiag_protocol = IPPROTO_TCP;
  ask.body.idiag_states = ~0U;
  ask.body.id.idiag_sport = own.port;
  ask.body.id.idiag_dport = other.port;
  std::memcpy(ask.body.id.idiag_src, own.address, sizeof own.address);
  std::memcpy(ask.body.id.idiag_dst, other.address, sizeof other.address);
  ask.body.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  ask.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const Descriptor link(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!link || ::send(link.get(), &ask, sizeof ask, 0) < 0) return {};
  alignas(nlmsghdr) char answer[1024];
  const ssize_t n = ::recv(link.get(), answer, sizeof answer, 0);
  const auto* const head = reinterpret_cast<const nlmsghdr*>(answer);
  const auto has = [n](size_t body) { return n >= static_cast<ssize_t>(NLMSG_LENGTH(body)); };
  if (has(sizeof(nlmsgerr)) && head->nlmsg_type == NLMSG_ERROR) {
    const auto* const error = reinterpret_cast<const nlmsgerr*>(NLMSG_DATA(head));
    return {error->error == -ENOENT ? Found::Kind::nothing : Found::Kind::unknown};
  }
  if (!has(sizeof(inet_diag_msg)) || head->nlmsg_type != SOCK_DIAG_BY_FAMILY) return {};
  const auto* const found = reinterpret_cast<const inet_diag_msg*>(NLMSG_DATA(head));
  if (found->idiag_inode == 0) return {Found::Kind::closed};
  return {Found::Kind::open, found->idiag_uid};
}

}  // namespace

std::optional<uid_t> user_at_other_end(int connection) {
  sockaddr_storage peer{}, own{};
  socklen_t size = sizeof peer, own_size = sizeof own;
  if (::getpeername(connection, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
      ::getsockname(connection, reinterpret_cast<sockaddr*>(&own), &own_size) != 0)
    return std::nullopt;
  const auto ours = end_of(own), theirs = end_of(peer);
  if (!ours || !theirs) return std::nullopt;
  using Kind = Found::Kind;
  const Found found = ask_for(peer.ss_family, *theirs, *ours);
  if (found.kind == Kind::open) return found.user;
  // What was closed is in no list either, and whoever connects and goes, again and again, must not
  // have a long one read each time. Our own end is there for certain.
  if (found.kind == Kind::closed) return std::nullopt;
  if (found.kind == Kind::nothing && ask_for(peer.ss_family, *ours, *theirs).kind == Kind::open)
    return std::nullopt;
  return peer.ss_family == AF_INET ? user_in_list(*ours, *theirs) : std::nullopt;
}

std::optional<bool> kernel_knows_users() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Descriptor ours(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener || !ours || ::bind(listener.get(), at, size) != 0 ||
      ::listen(listener.get(), 1) != 0 || ::getsockname(listener.get(), at, &size) != 0 ||
      ::connect(ours.get(), at, size) != 0)
    return std::nullopt;
  const Descriptor theirs(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!theirs || !Descriptor(::dup(ours.get()))) return std::nullopt;
  return user_at_other_end(ours.get()).has_value();
}

}  // namespace ductile::net
