#include "ductile/net/peer_user.h"

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

// Their end is the socket whose own address is our peer's.
std::optional<uid_t> user_by_question(sa_family_t family, const PeerEnd& ours,
                                      const PeerEnd& theirs) {
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
  ask.body.id.idiag_sport = theirs.port;
  ask.body.id.idiag_dport = ours.port;
  std::memcpy(ask.body.id.idiag_src, theirs.address, sizeof theirs.address);
  std::memcpy(ask.body.id.idiag_dst, ours.address, sizeof ours.address);
  ask.body.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  ask.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const Descriptor link(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!link || ::send(link.get(), &ask, sizeof ask, 0) < 0) return std::nullopt;
  alignas(nlmsghdr) char answer[1024];
  const ssize_t n = ::recv(link.get(), answer, sizeof answer, 0);
  const auto* const head = reinterpret_cast<const nlmsghdr*>(answer);
  if (n < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg))) ||
      head->nlmsg_type != SOCK_DIAG_BY_FAMILY)
    return std::nullopt;
  const auto* const found = reinterpret_cast<const inet_diag_msg*>(NLMSG_DATA(head));
  if (found->idiag_inode == 0) return std::nullopt;  // closed: the kernel says root of it
  return found->idiag_uid;
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
  const auto user = user_by_question(peer.ss_family, *ours, *theirs);
  return user || peer.ss_family != AF_INET ? user : user_in_list(*ours, *theirs);
}

}  // namespace ductile::net
