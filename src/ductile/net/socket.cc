#include "ductile/net/socket.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::net {
namespace {

std::string format_address(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const int flags = NI_NUMERICHOST | NI_NUMERICSERV;
  if (getnameinfo(address, size, host, sizeof host, port, sizeof port, flags) != 0) {
    return "unknown address";
  }
  const bool v6 = address->sa_family == AF_INET6;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, uint16_t port, bool passive, int family) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  const int error =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &found);
  if (error != 0) {
    fail(ErrorCode::unavailable,
         "{}: cannot resolve this host ({}); check the name, or use a number", host,
         gai_strerror(error));
  }
  return {found, freeaddrinfo};
}

void set_option(int fd, int level, int name, int value, const char* what) {
  if (setsockopt(fd, level, name, &value, sizeof value) != 0) {
    fail_errno(fmt::format("cannot set {} to {} on a socket", what, value), errno);
  }
}

// Options that must stand before connect() and listen(): buffers decide the window scale.
void apply(int fd, const SocketOptions& options) {
  if (options.send_buffer > 0) {
    set_option(fd, SOL_SOCKET, SO_SNDBUF, options.send_buffer, "SO_SNDBUF");
  }
  if (options.receive_buffer > 0) {
    set_option(fd, SOL_SOCKET, SO_RCVBUF, options.receive_buffer, "SO_RCVBUF");
  }
  if (!options.congestion.empty() &&
      setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, options.congestion.data(),
                 static_cast<socklen_t>(options.congestion.size())) != 0) {
    fail_errno(fmt::format("cannot use TCP congestion control '{}'; allowed here are those of "
                           "/proc/sys/net/ipv4/tcp_allowed_congestion_control",
                           options.congestion),
               errno);
  }
  if (!options.interface.empty() &&
      setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, options.interface.data(),
                 static_cast<socklen_t>(options.interface.size())) != 0) {
    fail_errno(
        fmt::format("cannot bind to network interface {}; 'ip link' lists them", options.interface),
        errno);
  }
}

void tune_connection(int fd, const SocketOptions& options) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  if (options.user_timeout.count() > 0) {
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(options.user_timeout.count()),
               "TCP_USER_TIMEOUT");
  }
}

void bind_local(int fd, const SocketOptions& options, int family) {
  if (options.local_address.empty()) return;
  const AddressList local = resolve(options.local_address, 0, true, family);
  if (bind(fd, local->ai_addr, local->ai_addrlen) != 0) {
    fail_errno(fmt::format("cannot bind to local address {}; 'ip address' lists this host's",
                           options.local_address),
               errno);
  }
}

// False: the deadline passed.
bool wait_for(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd item{fd, events, 0};
    const int ready = poll(&item, 1, poll_milliseconds(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) fail_errno("poll", errno);
    if (Clock::now() >= deadline) return false;
  }
}

// 0, or the errno of the failed attempt; ETIMEDOUT at the deadline.
int connect_within(int fd, const sockaddr* address, socklen_t size, Deadline deadline) {
  if (::connect(fd, address, size) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  if (!wait_for(fd, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

}  // namespace

int poll_milliseconds(Deadline deadline) {
  const auto left = deadline - Clock::now();
  if (left <= Clock::duration::zero()) return 0;
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return rounded > 3'600'000 ? 3'600'000 : static_cast<int>(rounded);
}

Address Address::parse(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    fail(ErrorCode::invalid_argument,
         "'{}' is no address ({}); write host:port, or [v6 address]:port", text, why);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) bad("no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    bad("an IPv6 host stands in brackets");
  }
  if (host.empty()) bad("no host");
  Address address{std::string(host), 0};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || port.empty()) {
    bad("the port is a number from 0 to 65535");
  }
  return address;
}

std::string Address::to_string() const {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

Address Socket::local() const {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getsockname(fd(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    fail_errno("cannot read a socket's own address", errno);
  }
  return Address::parse(format_address(reinterpret_cast<sockaddr*>(&storage), size));
}

size_t Socket::read_some(std::span<std::byte> into, Deadline deadline) {
  while (true) {
    const ssize_t got = recv(fd(), into.data(), into.size(), 0);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      fail(ErrorCode::peer_lost, "{}: connection broke while receiving: {}", peer_,
           std::strerror(errno));
    }
    if (!wait_for(fd(), POLLIN, deadline)) {
      fail(ErrorCode::deadline, "{}: nothing received in time; is the process there alive?", peer_);
    }
  }
}

void Socket::read_all(std::span<std::byte> into, Deadline deadline) {
  while (!into.empty()) {
    const size_t got = read_some(into, deadline);
    if (got == 0) {
      fail(ErrorCode::peer_lost, "{}: connection closed by the other end", peer_);
    }
    into = into.subspan(got);
  }
}

void Socket::write_all(std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      fail(ErrorCode::peer_lost, "{}: connection broke while sending: {}", peer_,
           std::strerror(errno));
    }
    if (!wait_for(fd(), POLLOUT, deadline)) {
      fail(ErrorCode::deadline, "{}: it took nothing in time; is the process there alive?", peer_);
    }
  }
}

Socket connect(const Address& to, const SocketOptions& options, Deadline deadline) {
  const AddressList list = resolve(to.host, to.port, false, AF_UNSPEC);
  int error = ECONNREFUSED;
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    Socket socket(fd, format_address(a->ai_addr, a->ai_addrlen));
    apply(fd, options);
    bind_local(fd, options, a->ai_family);
    error = connect_within(fd, a->ai_addr, a->ai_addrlen, deadline);
    if (error != 0) continue;
    tune_connection(fd, options);
    return socket;
  }
  if (error == ETIMEDOUT) {
    fail(ErrorCode::deadline, "{}: no answer in time; check the address, routes and firewalls",
         to.to_string());
  }
  fail(ErrorCode::unavailable,
       "{}: cannot connect: {}; is the process there running and listening?", to.to_string(),
       std::strerror(error));
}

std::string local_address_towards(const Address& to) {
  const AddressList found = [&] {
    try {
      return resolve(to.host, to.port == 0 ? 1 : to.port, false, AF_UNSPEC);
    } catch (const Error& e) {
      fail(ErrorCode::not_found, "{}", e.message());
    }
  }();
  int error = EHOSTUNREACH;
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    // To connect a datagram socket chooses the way, and sends nothing.
    const int fd = ::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 && errno == EAFNOSUPPORT) continue;
    if (fd < 0) fail_errno("cannot make a socket", errno);
    const Socket socket(fd, to.host);
    if (::connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0) return socket.local().host;
    error = errno;
  }
  fail(ErrorCode::not_found, "no way to {}: {}", to.host, std::strerror(error));
}

Listener::Listener(const Address& at, const SocketOptions& options) : options_(options) {
  const int family = at.host.empty() ? AF_INET : AF_UNSPEC;
  const AddressList list = resolve(at.host, at.port, true, family);
  const int fd = ::socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) fail_errno("cannot make a socket", errno);
  socket_ = Socket(fd, at.to_string());
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (list->ai_family == AF_INET6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY");
  apply(fd, options);
  if (bind(fd, list->ai_addr, list->ai_addrlen) != 0) {
    const int error = errno;
    fail(ErrorCode::unavailable,
         "{}: cannot listen: {}; choose a free port (0 = any) and an address of this host",
         at.to_string(), std::strerror(error));
  }
  if (listen(fd, 512) != 0) fail_errno(fmt::format("{}: cannot listen", at.to_string()), errno);
}

Socket Listener::try_accept() {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  while (true) {
    const int fd = accept4(socket_.fd(), reinterpret_cast<sockaddr*>(&storage), &size,
                           SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Socket socket(fd, format_address(reinterpret_cast<sockaddr*>(&storage), size));
      tune_connection(fd, options_);
      return socket;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      fail(ErrorCode::unavailable,
           "{}: cannot accept: {}; raise the limit of open files (ulimit -n)",
           address().to_string(), std::strerror(errno));
    }
    // A connection that died in the queue is no error of the listener's.
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    return {};
  }
}

Socket Listener::accept(Deadline deadline) {
  while (true) {
    Socket socket = try_accept();
    if (socket) return socket;
    if (!wait_for(fd(), POLLIN, deadline)) {
      fail(ErrorCode::deadline, "{}: nobody connected in time", address().to_string());
    }
  }
}

}  // namespace ductile::net
