#pragma once

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include <sys/uio.h>

#include "ductile/comm/mesh.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

// What goes before each payload, little-endian as all our hosts are.
struct TcpHeader {
  Tag tag = 0;
  uint64_t length = 0;
};
static_assert(sizeof(TcpHeader) == 16);

// One connection of a TcpTransport: what is to be sent, what is being received, and the matching of
// messages with posted receives. Throws peer_lost or data_loss where the connection cannot go on.
class TcpConnection {
 public:
  struct Limits {
    size_t soft;
    size_t hard;
  };

  TcpConnection(MeshLink link, Limits limits);

  int peer() const { return link_.peer; }
  int fd() const { return link_.socket.fd(); }
  bool has_left() const { return left_; }

  // Each returns how many transfers it settled as done.
  int send(Tag tag, std::span<const std::byte> bytes, Transfer& transfer);
  int receive(Tag tag, std::span<std::byte> bytes, Transfer& transfer);
  int write();  // as much of the queue as the kernel takes
  int read();   // a bounded amount; see wants_reading()

  // epoll's word, edge-triggered: remembered until the kernel says that there is no more.
  void set_readable() { readable_ = true; }
  void set_writable() { writable_ = true; }
  void set_closing() { closing_ = true; }
  bool wants_reading() const { return readable_ && (!held_ || closing_) && !ended_; }

  // Settles everything as failed.
  void abandon();
  // Tells the peer that this end leaves in good order. Best effort: never blocks.
  void say_goodbye();

 private:
  struct Outgoing {
    TcpHeader header;
    std::span<const std::byte> bytes;
    Transfer* transfer;
    size_t sent;  // of header and bytes together
  };
  struct Posted {
    std::span<std::byte> into;
    Transfer* transfer;
  };
  // A message without a receive; whole, or (the last one) still arriving.
  struct Unexpected {
    std::unique_ptr<std::byte[]> bytes;
    size_t length;
  };
  // The message that is arriving.
  struct Incoming {
    TcpHeader header;
    std::span<std::byte> rest;
    Transfer* transfer = nullptr;      // direct
    Unexpected* unexpected = nullptr;  // or by way of a buffer
  };

  size_t fill();
  int use_ahead();
  int begin(const TcpHeader& header);
  int complete();
  void on_goodbye();
  [[noreturn]] void lose(const std::string& how) const;
  void check_length(Tag tag, size_t got, size_t posted) const;
  static int settle(Transfer* transfer);

  static constexpr size_t kAhead = 4096 + sizeof(TcpHeader);
  static constexpr uint64_t kGoodbye = ~uint64_t{0};

  MeshLink link_;
  Limits limits_;
  std::deque<Outgoing> queue_;
  std::unordered_map<Tag, Posted> posted_;
  std::unordered_map<Tag, Unexpected> unexpected_;
  size_t unexpected_bytes_ = 0;
  std::optional<Incoming> incoming_;
  std::optional<TcpHeader> held_;  // a message that has to wait for its receive
  std::array<std::byte, kAhead> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  bool readable_ = true;
  bool writable_ = true;
  bool closing_ = false;  // the peer sends no more; what is there is read without bounds
  bool left_ = false;     // it said goodbye
  bool ended_ = false;    // and closed
};

}  // namespace ductile::comm
