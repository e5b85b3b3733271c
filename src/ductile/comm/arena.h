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
  // A wait of this length ends the arena with an error that names the missing ranks. 0: waits have
  // no limit, and an outside failure detector must notice peers that are alive but stopped.
  std::chrono::nanoseconds stall_deadline{0};
  // Called every few milliseconds while ranks meet; if it returns true, the meeting ends with
  // peer_lost.
  std::function<bool()> given_up;
  std::vector<int> labels;  // what to call ranks 0, 1 ... in messages; empty: by their numbers
};

// Memory that the ranks of one host share, and how they wait for one another. Each rank owns one
// region; regions are of equal size, and a block allocated by all ranks in the same order lies at
// the same offset in each ("symmetric"), so that a rank finds its peers' blocks by arithmetic.
//
// The segment is a memfd: it has no name, and it disappears with the last process that maps it,
// however that process ends. A peer's death is detected through pidfds, at once, even while the
// peer is a zombie.
//
// Threads: one thread at a time (the owner) allocates and runs collectives, while another may drive
// a transport over the arena; fail(), failed(), loss(), stall() and stall_report() may come from
// any thread.
//
// Failure: the first loss latches, for all ranks of the arena, and every local wait ends with Error
// peer_lost within milliseconds. The arena is then finished: build another under a new generation.
// Memory that a collective was writing has unspecified contents, which may still change, since a
// stopped peer may wake up and finish its tile. Call detach() before relying on the rest of the
// memory.
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

  // Allocates a block in this rank's region: 64-byte aligned, and 2 MiB aligned if it has at least
  // 2 MiB; memory is zero when first used. Throws unavailable if the region is full. The block
  // lives until release() of an earlier mark, or until the arena ends.
  std::byte* allocate(size_t bytes);
  size_t room() const;  // bytes of the largest block that is left
  // Blocks stay addressable while this lives, though the arena is gone and its peers know it.
  std::shared_ptr<const void> memory() const;
  size_t mark() const;
  void release(size_t mark);  // frees what was allocated since mark() returned `mark`

  // Reserves room in the segment in which a group of ranks can run its own collectives, at the same
  // time as other groups; -1 if none is left. One member calls it and tells the number to the
  // others. Any thread.
  int take_group(int num_ranks);
  // Makes the arena of a group: the ranks `ranks` of `whole`, in that order; this rank is number
  // own_rank of them. Each member calls it once, with the same list and room number; the room is
  // free again when all of them have destroyed the group. A group uses the regions and blocks of
  // `whole` and cannot allocate: a block at the same offset in all members' regions is symmetric
  // for the group. A failure of one arena is a failure of both.
  static std::unique_ptr<Arena> group(std::shared_ptr<Arena> whole, std::vector<int> ranks,
                                      int own_rank, int number);
  // The arena of which this is a group, or nullptr.
  const std::shared_ptr<Arena>& whole() const;

  // Whether [p, p + bytes) lies in the own region.
  bool holds(const std::byte* p, size_t bytes) const;
  // The byte of `peer`'s region at the offset of `own`; nullptr if `own` is not in the own region.
  // Reading it is a race unless a collective, a barrier or a message has shown that the peer has
  // finished writing it.
  std::byte* peer(int peer, const std::byte* own) const;

  // Latches `loss`, unless one is latched, and wakes every rank.
  void fail(PeerLoss loss);
  bool failed() const;
  // The latched loss; empty before a failure.
  std::optional<PeerLoss> loss() const;
  // Throws peer_lost, with the reason, if failed(); also looks for dead peers if `look`.
  void check(bool look = false);

  // Sets a soft deadline: if a collective of this rank waits for longer, `on_stall` is called once,
  // with the labels of the ranks that have not reached it, or are in it and do not finish. The
  // owner calls this before any collective; 0: no deadline.
  void report_stalls(std::chrono::nanoseconds soft_deadline, OnStall on_stall);
  // The collective in which this rank has been waiting for some time, if there is one.
  std::optional<Stall> stall() const;
  // "all_reduce #17 of 26214400 bytes: waiting for rank 2 (last in #16)"; empty if no rank waits.
  std::string stall_report() const;

  // Replaces this rank's region by private memory with the same contents at the same addresses,
  // which no peer can reach. It is for use after a failure; the arena then only holds memory.
  void detach();

  struct Impl;  // arena_impl.h
  Impl& impl() { return *impl_; }

 private:
  explicit Arena(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::comm
