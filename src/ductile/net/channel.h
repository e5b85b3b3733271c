#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "ductile/net/seal.h"
#include "ductile/net/socket.h"

namespace ductile::net {

// An encrypted connection that carries messages, with blocking calls. One thread at a time.
//
// Errors name the peer. peer_lost: the connection has ended; the text says whether the other end
// said so, or it was cut (the process there was killed, or somebody in between ended it), or it
// broke. data_loss: forged, altered, or too long.
class Channel {
 public:
  // The handshake of `seal` is done.
  Channel(Socket socket, Seal seal, size_t max_payload = Seal::kDefaultMaxPayload);
  Channel(Channel&&) noexcept = default;
  Channel& operator=(Channel&&) = delete;
  // Tells the other end that nothing more comes, if that needs no waiting.
  ~Channel();

  void send(std::span<const std::byte> payload, Deadline deadline);
  // Throws deadline, and as above.
  std::vector<std::byte> receive(Deadline deadline);
  // The next message, if it has arrived completely; never waits. Throws as receive() does.
  std::optional<std::vector<std::byte>> try_receive();

  const Socket& socket() const { return socket_; }

 private:
  std::optional<std::vector<std::byte>> next();
  [[noreturn]] void lose() const;

  Socket socket_;
  Seal seal_;
  bool whole_ = true;  // all that was sent so far was sent wholly
};

}  // namespace ductile::net
