#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ductile/net/secret.h"

namespace ductile::net {

// One end of a connection that TLS 1.3 encrypts, without I/O: bytes in, bytes out. It carries
// messages, each as its length (4 bytes, little-endian) and its bytes.
//
// Both ends have a key that is good for this one connection (Handshake::key()), and that is all by
// which they know each other: there is no certificate, no ticket, no early data, no older version,
// and one cipher suite. Each connection has a Diffie-Hellman exchange of its own (X25519), so that
// who records it, and learns the key later, cannot read it. What was altered, dropped, repeated or
// reordered on the way is detected, and so is an end that the other side did not say.
//
// For control traffic; the bulk transports have their own framing, and are not encrypted.
class Seal {
 public:
  enum class Side : uint8_t { client, server };
  static constexpr size_t kDefaultMaxPayload = 4 << 20;
  // So many bytes are sent under one key, which then is followed by the next one.
  static constexpr size_t kBytesOfAKey = size_t{64} << 20;

  Seal(Side side, const Mac& key);
  Seal(Seal&&) noexcept;
  Seal& operator=(Seal&&) noexcept;
  ~Seal();

  // Of a message, in either direction.
  void set_max_payload(size_t bytes);

  // ---- The handshake. What the client says first is there from the beginning.

  bool done() const;
  // The number of bytes for which it waits. Never read more than this from the other end before the
  // handshake is done.
  size_t wanted() const;
  // What has come from the other end: at most wanted() bytes before the handshake is done, any
  // number after. Throws unavailable where the other end has another key, is no Seal, or something
  // in between altered its bytes; take_output() then has what it is told.
  void feed(std::span<const std::byte> bytes);
  // Takes the bytes that are to be sent now: of the handshake or, once next() has thrown, those by
  // which the other end hears of it.
  std::vector<std::byte> take_output();

  // ---- Messages, once it is done.

  // Appends the bytes to send for one message to `out`. Throws invalid_argument above the maximum.
  void append(std::span<const std::byte> payload, std::vector<std::byte>& out);
  // The next whole message of what was fed. Throws data_loss for a length above the maximum, as
  // soon as it is known, for bytes that were altered on the way, and for an end within a message;
  // the connection is then to be closed. Memory is bounded by one message and the bytes fed.
  std::optional<std::vector<std::byte>> next();

  // Appends the word that nothing more comes, after which nothing more may be appended.
  void end(std::vector<std::byte>& out);
  // The other end has said so, and next() has given all messages. A connection that ends otherwise
  // was cut.
  bool ended() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::net
