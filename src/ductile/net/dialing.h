#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/net/gate.h"
#include "ductile/net/handshake.h"
#include "ductile/net/loop.h"
#include "ductile/net/seal.h"
#include "ductile/net/secret.h"
#include "ductile/net/socket.h"

namespace ductile::net {

// dial() (gate.h) for those who must not wait: the client's end of an encrypted connection, made in
// a loop. It tries once.
class Dialing {
 public:
  // The connection, or why there is none, with the address: unavailable (nobody listens, or the
  // secret is wrong), deadline, conflict (another process is at that address).
  using Outcome = std::variant<Admission, Error>;
  // Called once, from the loop, and never from the constructor. It may destroy the dialing.
  using OnDone = std::function<void(Outcome)>;

  // The host of `to` is a number, since a name would have to be looked up; else invalid_argument.
  // Throws unavailable where this process has no descriptor for it. The end of the object gives up.
  Dialing(Loop& loop, const Address& to, const Secret& secret, const Identity& self,
          const Identity& server, std::chrono::milliseconds patience, OnDone on_done);
  Dialing(const Dialing&) = delete;
  Dialing& operator=(const Dialing&) = delete;

 private:
  void advance();
  bool take_step(std::optional<Outcome>& outcome);
  bool flush();
  void end(Outcome outcome);

  Handshake handshake_;
  std::optional<Seal> seal_;  // once both have authenticated each other
  OnDone on_done_;
  Socket socket_;
  std::vector<std::byte> unsent_;
  Loop::Watch watch_;
  Loop::Timer limit_;
};

}  // namespace ductile::net
