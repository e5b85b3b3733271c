#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/comm/stall.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

struct ArenaOptions {
  size_t region_bytes = 0;  // memory of each rank; rounded up to 2 MiB; taken up when touched
  uint64_t generation = 0;  // ranks of another generation are refused
  bool huge_pages = true;   // ask for them; not an error where there are none
  // A wait as long as this ends the arena and names the ranks waited for. 0: never; then a failure
  // detector outside must notice peers that live but stand still.
  std::chrono::nanoseconds stall_deadline{0};
  // Asked every few milliseconds while ranks meet; true ends the meeting with peer_lost.
  std::function<bool()> given_up;
  std::vector<int> labels;  // what to call ranks 0, 1 ... in messages; empty: by their numbers
};

// Memory that the ranks of one host share, and how they wait for one another. Each rank owns one
// region; regions are of equal size, and a block allocated by all ranks in the same order lies at
// the same offset in each ("symmetric"), so that a rank finds its peers' blocks by arithmetic.
//
// The segment is a memfd: it has no name, and is gone with the last process that maps it, however
// that ends. A peer's death is seen through pidfds, at once and also while it is a zombie.
//
// Threads: one thread at a time (the owner) allocates and runs collectives, while another may drive
// a transport over the arena; fail(), failed(), loss(), stall() and stall_report() may come from
// any thread.
//
// Failure: the first loss latches, for all ranks of the arena; every local wait then ends with
// Error peer_lost within milliseconds. The arena is finished: build another under a new generation.
// Memory that a collective was writing holds anything from then on, and may still change, since a
// stopped peer may wake up and finish its tile; call detach() before relying on the rest of it.
class Arena {
 public:
  static constexpr int kMaxRanks = 128;

  // One arena for each of `num_ranks` threads of this process.
  static std::vector<std::unique_ptr<Arena>> for_threads(int num_ranks,
                                                         const ArenaOptions& options);

  // Meets the processes of this host (and user, and network namespace) that call this with the same
  // `name`: rank 0 makes the segment and hands it out over an abstract unix socket, which ends with
  // the meeting. `name` has at most 80 characters, and is unique to the job and generation.
  // Processes of other users are refused. Throws deadline if ranks are missing after `patience`,
  // and names them; peer_lost as soon as options.given_up says so.
  static std::unique_ptr<Arena> meet(const std::string& name, int rank, int num_ranks,
                                     const ArenaOptions& options,
                                     std::chrono::nanoseconds patience);

  ~Arena();  // unmaps; peers that still wait for this rank lose it
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int rank() const;
  int size() const;
  uint64_t generation() const;

  // A block of the own region: 64-byte aligned, 2 MiB aligned from 2 MiB on; zero when first used.
  // Throws unavailable where the region is full. Lives until release() of an earlier mark, or the
  // arena's end.
  std::byte* allocate(size_t bytes);
  size_t room() const;  // bytes of the largest block that is left
  size_t mark() const;
  void release(size_t mark);  // frees what was allocated since mark() returned `mark`

  // Room in the segment for a group of ranks to run collectives of their own, at the same time as
  // others do; -1 where there is none left. By one of the members, which tells the number to the
  // others. Any thread.
  int take_group(int num_ranks);
  // The arena of the ranks `ranks` of `whole`, in that order, of which the own one is the
  // own_rank-th. Each member calls it with the same list and number, once; the room is given back
  // when all of them have destroyed it. It has the regions of `whole`, and their blocks: one at the
  // same offset in all members' regions is symmetric for the group; nothing can be allocated from
  // it. A failure of either is one of both.
  static std::unique_ptr<Arena> group(std::shared_ptr<Arena> whole, std::vector<int> ranks,
                                      int own_rank, int number);
  // What this is a group of, or nullptr.
  const std::shared_ptr<Arena>& whole() const;

  // Whether [p, p + bytes) lies in the own region.
  bool holds(const std::byte* p, size_t bytes) const;
  // The byte of `peer`'s region at the offset of `own`; nullptr if `own` is not in the own region.
  // Reading it is a race unless a collective, a barrier or a message says the peer is done with it.
  std::byte* peer(int peer, const std::byte* own) const;

  // Latches `loss`, unless one is latched, and wakes every rank.
  void fail(PeerLoss loss);
  bool failed() const;
  // What was latched; nothing before a failure.
  std::optional<PeerLoss> loss() const;
  // Throws peer_lost, with the reason, if failed(); also looks for dead peers if `look`.
  void check(bool look = false);

  // A collective of this rank that waits for longer than `soft_deadline` is told to `on_stall`
  // once, with the labels of the ranks that have not come to it, or that are at work in it and do
  // not finish. By the owner, before collectives; 0: never.
  void report_stalls(std::chrono::nanoseconds soft_deadline, OnStall on_stall);
  // The collective in which this rank has been waiting for some time; nothing where it does not.
  std::optional<Stall> stall() const;
  // "all_reduce #17 of 26214400 bytes: waiting for rank 2 (last in #16)"; empty if no rank waits.
  std::string stall_report() const;

  // Gives the own region memory of its own, with the contents of now, at the same addresses: no
  // peer can reach it any more. For after a failure; the arena then serves to hold memory only.
  void detach();

  struct Impl;  // arena_impl.h
  Impl& impl() { return *impl_; }

 private:
  explicit Arena(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::comm
