#pragma once

#include <cstddef>
#include <memory>

#include "ductile/comm/arena.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

struct ShmTransportOptions {
  // A message of at most this many bytes is copied by send(), whose transfer is then done at once
  // unless the ring is full. A longer one waits for its receive.
  size_t eager_bytes = 4096;
};

// Messages between the ranks of an arena. A message to a receive that lies in the receiver's region
// (Arena::holds) is copied once, by the sender, straight to there. If it has more than 64 KB and
// the receive is posted first, the sender knows the place by then, and the receiver has nothing to
// do until the message is complete: each posted receive is a credit for one message. A message that
// lies in the sender's region is copied once, by the receiver, straight from there; others pass
// through a ring of 256 KB between the two ranks. peer_memory() is Arena::peer().
//
// After a failure a peer that is stopped, or has not heard of it, may still write to such a
// receive: memory in which receives were posted is not used for anything else then (Arena::detach).
//
// There may be only one transport per arena and rank, ever. The arena's collectives may be used at
// the same time. fail(), a peer's death and a message of another length fail the arena, and so
// every rank.
std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<Arena> arena,
                                              const ShmTransportOptions& options = {});

}  // namespace ductile::comm
