#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/net/seal.h"

namespace ductile::server {

// One end of the connection between a controller and a host's agent, through the pipes of a
// launcher command. It begins with plain lines, since a login script may print some, and goes on
// with encrypted messages once both ends have a key. Those, too, travel as lines, in base64: a
// launcher need carry no more than text, and may hold back what no newline has ended, as srun does.
// Pure but for read() and flush().
class AgentWire {
 public:
  using OnText = std::function<void(std::string_view)>;

  // Takes what has come through a descriptor that does not block: lines, and from seal() on
  // messages. False: the stream has ended. Throws as net::Seal does, and data_loss for a line
  // without an end, or one that is not base64 where it has to be.
  bool read(int fd, const OnText& on_text);
  void take(std::span<const std::byte> bytes, const OnText& on_text);

  void say(std::string_view text);  // a line or message; flush() sends it
  // From the next byte on, in both directions. `on_text` may call it.
  void seal(net::Seal::Side side, const net::Mac& key);
  bool sealed() const { return seal_.has_value(); }
  bool ready() const { return seal_ && seal_->done(); }  // and the other end has the same key

  // Writes what the descriptor takes now; false: it takes nothing more, ever.
  bool flush(int fd);
  bool has_unsent() const { return unsent() > 0; }
  size_t unsent() const { return unsent_.size() - sent_; }  // bytes

 private:
  void check(const std::string& line);
  void feed(std::span<const std::byte> bytes, const OnText& on_text);
  void send(std::span<const std::byte> sealed);

  std::string line_;  // that has not ended yet
  size_t plain_ = 0;  // bytes that came before the seal
  std::optional<net::Seal> seal_;
  std::vector<std::string> waiting_;  // to be said when it is ready
  std::vector<std::byte> unsent_;
  size_t sent_ = 0;  // of these, the first
};

}  // namespace ductile::server
