#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "ductile/net/gate.h"
#include "ductile/net/loop.h"
#include "ductile/net/seal.h"
#include "ductile/net/socket.h"

namespace ductile::net {

// Carries a stream of bytes both ways between a socket of this machine and an encrypted connection
// to another one, in a loop and without waiting. What one side does not take is not read from the
// other one, so that memory is bounded, by some 200 KB. When one side ends, the other one is given
// what came before that, and ended, too: who says that he sends no more gets nothing more.
class Relay {
 public:
  // `near` is a stream socket that does not block, whose connection may still be being made; the
  // seal of `far` is there. `on_end` is called once, from the loop, and may destroy the relay; both
  // sockets are closed then. Throws as Loop::watch does.
  Relay(Loop& loop, Socket near, Admission far, std::function<void()> on_end);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

 private:
  void turn();
  bool move_out();
  bool move_in();
  bool is_over() const;
  void look_again(bool more);
  void end();

  Loop& loop_;
  Socket near_, far_;
  Seal seal_;
  std::vector<std::byte> out_, in_;  // on their way to the far and the near side
  bool near_ended_ = false, far_ended_ = false;
  std::function<void()> on_end_;
  Loop::Watch near_watch_, far_watch_;
  Loop::Timer linger_;  // once one side has ended
};

}  // namespace ductile::net
