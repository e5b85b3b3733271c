#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "ductile/net/seal.h"
#include "ductile/net/socket.h"

namespace ductile::net {

// An encrypted connection that carries messages, with calls that wait and calls that do not. One
// thread at a time.
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
  // Sends without ever waiting: what the socket does not take now is left for flush(). False: an
  // earlier message is not wholly sent yet, and nothing was taken of this one. So the bytes of one
  // message wait at most. Throws as above.
  bool offer(std::span<const std::byte> payload);
  // Sends what is left of the offered message, as far as the socket takes it now.
  void flush();
  size_t unsent() const { return unsent_.size(); }  // bytes that are left
  // Throws deadline, and as above.
  std::vector<std::byte> receive(Deadline deadline);
  // The next message, if it has arrived completely; never waits. Throws as receive() does.
  std::optional<std::vector<std::byte>> try_receive();

  const Socket& socket() const { return socket_; }
  // The other end has said that nothing more comes.
  bool ended() const { return seal_.ended(); }

 private:
  std::optional<std::vector<std::byte>> next();
  [[noreturn]] void lose() const;

  Socket socket_;
  Seal seal_;
  std::vector<std::byte> unsent_;
  bool whole_ = true;  // all that send() was given was sent wholly
};

}  // namespace ductile::net
