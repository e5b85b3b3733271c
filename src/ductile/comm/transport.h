#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ductile::comm {

// Matches a receive with a send between one ordered pair of ranks. The caller may use a tag again
// between the same two ranks only after the last message with that tag was received. The top four
// bits are the rail: a transport with several links to a peer carries the message on link
// rail_of(tag) modulo the number of links; one with a single link ignores them.
using Tag = uint64_t;

constexpr int kRailShift = 60;
constexpr int kMaxRails = 16;
constexpr int rail_of(Tag tag) { return static_cast<int>(tag >> kRailShift); }

// The state of one send or receive; owned by the caller, who keeps it in place until it is settled.
struct Transfer {
  enum class State : uint8_t { idle, pending, done, failed };

  std::atomic<State> state{State::idle};

  bool settled() const {
    const State now = state.load(std::memory_order_acquire);
    return now == State::done || now == State::failed;
  }
};

// Why a communicator ended.
struct PeerLoss {
  std::vector<int> ranks;  // who is gone, as far as it is known; ascending
  std::string reason;      // "connection closed by rank 3 during ..."; for people
};

// Carries messages between the ranks 0 .. size() - 1 of one generation of one job. This interface
// is the seam between the collectives and the wire. Peers are authenticated before a Transport
// exists.
//
// Threads: one thread at a time (the owner) calls all methods, except that any thread may call
// wake() and fail(). Ownership may pass between threads, with the usual synchronisation.
//
// Leaving: a peer that destroys its transport without a loss has left. Messages that it had sent by
// then (their transfers were done) still arrive, and ranks without a transfer to it go on. A rank
// that has, or starts, a transfer which that peer can no longer serve sees it as lost.
//
// Failure: the first lost peer latches. From then on no transfer completes as done, every pending
// one is settled as failed (its memory is not touched again), and progress(), send() and receive()
// throw Error peer_lost, or data_loss, with the reason of the first loss. The transport is then
// finished: destroy it, and build another under a new generation. Destruction releases sockets,
// segments and threads, and never blocks on a peer.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Starts sending `bytes` to `peer`. They must stay unchanged until `transfer` is settled.
  virtual void send(int peer, Tag tag, std::span<const std::byte> bytes, Transfer& transfer) = 0;

  // Starts receiving the message `tag` of `peer` into `bytes`; whichever of send and receive comes
  // first waits for the other. A message of another length fails the transport with data_loss.
  virtual void receive(int peer, Tag tag, std::span<std::byte> bytes, Transfer& transfer) = 0;

  // Drives the transfers. Returns once at least one transfer has been settled since the last call,
  // wake() was called, or `wait` has passed (0: it never waits). While it waits it yields the core.
  virtual void progress(std::chrono::nanoseconds wait) = 0;

  // Ends a waiting progress(), or the next one.
  virtual void wake() = 0;

  // Latches `loss`, if none is latched yet, and wakes the owner. Called by failure detectors.
  virtual void fail(PeerLoss loss) = 0;

  // The memory of `peer` that corresponds to `own`, which lies in an arena that both map; nullptr
  // if the peer's memory cannot be addressed. See arena.h for the rules of access.
  virtual std::byte* peer_memory(int peer, const std::byte* own) = 0;
};

}  // namespace ductile::comm
