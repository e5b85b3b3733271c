#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ductile/base/descriptor.h"

namespace ductile::net {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// Milliseconds from now to `deadline` as poll() wants them: rounded up, 0 once it has passed.
int poll_milliseconds(Deadline deadline);

// "host:port", "[v6]:port". The host is a name or a number; port 0 asks for any free one.
struct Address {
  std::string host;
  uint16_t port = 0;

  // Throws invalid_argument that shows the right form.
  static Address parse(std::string_view text);
  std::string to_string() const;
  bool operator==(const Address&) const = default;
};

// How a connection is made; the zero values leave a matter to the kernel.
struct SocketOptions {
  std::string local_address;  // bind here: chooses the link on a host with several
  std::string interface;      // SO_BINDTODEVICE, where the address alone does not decide
  std::chrono::milliseconds user_timeout{0};  // TCP_USER_TIMEOUT: unacknowledged for longer = dead
  int send_buffer = 0;                        // bytes; setting one switches its auto-tuning off
  int receive_buffer = 0;
  std::string congestion;  // TCP_CONGESTION: "bbr", "reno" ..., as the kernel offers to this host
};

// An owned, non-blocking TCP socket with TCP_NODELAY, closed on exec. Movable. Not for several
// threads at once. Every error names the address of the other end.
class Socket {
 public:
  Socket() = default;
  Socket(int fd, std::string peer) : fd_(fd), peer_(std::move(peer)) {}

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  const std::string& peer() const { return peer_; }  // "10.0.0.2:4711"
  Address local() const;
  void close() { fd_.close(); }

  // Reads at least one byte, and as many as there are. 0: the other end closed. Throws deadline,
  // or peer_lost where the connection broke.
  size_t read_some(std::span<std::byte> into, Deadline deadline);
  // Fills `into`. Throws peer_lost if the connection ends before.
  void read_all(std::span<std::byte> into, Deadline deadline);
  void write_all(std::span<const std::byte> bytes, Deadline deadline);

 private:
  Descriptor fd_;
  std::string peer_;
};

// Connects to the first address of `to` that answers. Throws unavailable (refused, unreachable) or
// deadline, naming the address and what to look at. The deadline does not limit the lookup of a
// name by the resolver.
Socket connect(const Address& to, const SocketOptions& options, Deadline deadline);

// The address that this host would use to talk to `to`, and under which the hosts there reach it.
// Nothing is sent. Throws not_found if there is no route or no such name.
std::string local_address_towards(const Address& to);

// A listening socket. IPv6 listeners take IPv6 only.
class Listener {
 public:
  Listener() = default;
  // An empty host listens on every IPv4 address.
  explicit Listener(const Address& at, const SocketOptions& options = {});

  int fd() const { return socket_.fd(); }
  Address address() const { return socket_.local(); }  // with the port the kernel chose

  // The next waiting connection, or a Socket without fd if there is none. Throws unavailable if the
  // process ran out of descriptors.
  Socket try_accept();
  // Waits for one; throws deadline.
  Socket accept(Deadline deadline);

 private:
  Socket socket_;
  SocketOptions options_;
};

}  // namespace ductile::net
