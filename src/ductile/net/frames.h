#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ductile/net/handshake.h"
#include "ductile/net/socket.h"

namespace ductile::net {

// A frame on the wire: length of the payload (4 bytes, little-endian), payload, and the first 16
// bytes of HMAC-SHA256(key of this direction, number of the frame | length | payload). A frame that
// is forged, altered, dropped, repeated, reordered or sent back is detected. Frames are not
// encrypted. They are for control traffic; the bulk transports have their own framing.
inline constexpr size_t kFrameOverhead = 4 + 16;

class FrameWriter {
 public:
  FrameWriter(const Mac& key, size_t max_payload) : key_(key), max_(max_payload) {}
  // Appends one frame to `out`. Throws invalid_argument above the maximum.
  void append(std::span<const std::byte> payload, std::vector<std::byte>& out);

 private:
  Secret key_;
  size_t max_;
  uint64_t number_ = 0;
};

// Cuts a byte stream into frames. Memory is bounded by one frame of maximal size and the bytes fed:
// a longer frame is refused as soon as its length has arrived.
class FrameReader {
 public:
  FrameReader(const Mac& key, size_t max_payload) : key_(key), max_(max_payload) {}
  void feed(std::span<const std::byte> bytes);
  // The next whole payload. Throws data_loss for a length above the maximum or a wrong code; the
  // connection is then to be closed.
  std::optional<std::vector<std::byte>> next();

 private:
  Secret key_;
  size_t max_;
  uint64_t number_ = 0;
  std::vector<std::byte> buffer_;
  size_t start_ = 0;
};

// An authenticated connection that carries frames, with blocking calls. One thread at a time.
class Channel {
 public:
  enum class Side { client, server };
  static constexpr size_t kDefaultMaxPayload = 4 << 20;

  Channel(Socket socket, const SessionKeys& keys, Side side,
          size_t max_payload = kDefaultMaxPayload);

  void send(std::span<const std::byte> payload, Deadline deadline);
  // Throws deadline, peer_lost (closed), data_loss (forged or too long), naming the peer.
  std::vector<std::byte> receive(Deadline deadline);
  // The next payload, if it has arrived completely; never waits. Throws as receive() does.
  std::optional<std::vector<std::byte>> try_receive();

  const Socket& socket() const { return socket_; }

 private:
  Socket socket_;
  FrameWriter writer_;
  FrameReader reader_;
};

}  // namespace ductile::net
