#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sched.h>

#include "ductile/base/descriptor.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/futex_impl.h"

namespace ductile::comm {

using Nanoseconds = std::chrono::nanoseconds;

// What a rank is doing, published so that peers can check that they do the same, and name who lags.
enum class OpKind : uint32_t {
  none,
  barrier,
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  combine,
};
const char* name_of(OpKind kind);

constexpr size_t kHugePage = size_t{2} << 20;
// Small vectors are exchanged through two slots a rank, by turns; larger ones outside of the arena
// through the whole of its staging memory, piece by piece.
constexpr size_t kSlotBytes = size_t{32} << 10;
constexpr size_t kStagingBytes = size_t{1} << 20;
// Of a rank in a group: the slots and a piece.
constexpr size_t kGroupStagingBytes = size_t{256} << 10;
constexpr size_t kRingCapacity = size_t{256} << 10;
constexpr size_t kRingBytes = kRingCapacity + 4096;

// The control words of one rank. Operations are numbered from 1; what belongs to one operation
// exists twice, by turns: once all ranks have arrived at operation m, none is in m - 1 or before
// any more, so the words of m - 1 can be cleared for m + 1.
struct RankSlot {
  // The last operation that this rank has arrived at, and what it is (checked against the own).
  Signal arrived;
  struct alignas(64) Op {
    uint64_t signature;
  };
  Op op[2];
  struct alignas(64) Claims {
    std::atomic<uint32_t> next;  // the next tile of this rank's slice that nobody has taken
  };
  Claims claims[2];
  Signal doorbell;  // of the transport: rung when there is something in a ring for this rank

  // For people: relaxed, read by stall_report().
  alignas(64) std::atomic<uint32_t> joined;
  std::atomic<uint32_t> left;            // has destroyed its arena
  std::atomic<uint32_t> left_transport;  // has destroyed its transport
  std::atomic<uint32_t> inside;          // in an operation now
  std::atomic<uint32_t> waits;           // ... and has been waiting for others for a while
  std::atomic<uint32_t> kind;
  std::atomic<uint64_t> bytes;
};

struct ArenaHeader {
  uint64_t magic;
  uint64_t generation;
  uint32_t num_ranks;
  uint64_t region_bytes;
  Signal tiles_done[2];  // of the running operation

  enum : uint32_t { fine, failing, failed };
  alignas(64) std::atomic<uint32_t> failure;
  uint32_t num_lost;
  int32_t lost[Arena::kMaxRanks];
  char reason[1024];
};

// What a group of ranks has of its own, besides its slots and staging memory: the first rank of a
// group takes one that is free, the last to leave gives it back.
struct GroupHeader {
  std::atomic<uint32_t> taken;
  std::atomic<uint32_t> present;  // members that have not left
  Signal tiles_done[2];
};

// Where things lie in the segment.
struct ArenaLayout {
  ArenaLayout(int num_ranks, size_t region_bytes);
  int num_groups;
  size_t group_bytes, group_slots, group_staging;  // of each group, and offsets in it
  size_t slots, staging, rings, groups, regions, total;
};

// A shared mapping; unmapped at the end of life.
struct ArenaMapping {
  ArenaMapping(int fd, size_t bytes);  // fd -1: for the threads of this process
  ~ArenaMapping();
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;
  std::byte* base;
  size_t bytes;
  Descriptor file;  // of the segment; none: for the threads of this process
};

struct Arena::Impl {
  Impl(std::shared_ptr<ArenaMapping> shared, int own_rank, int num_ranks, ArenaOptions opts);
  // A group of the ranks `ranks` of `whole`, with the words and the staging memory of `number`.
  Impl(std::shared_ptr<Arena> whole, std::vector<int> ranks, int own_rank, int number);
  ~Impl();

  std::shared_ptr<ArenaMapping> mapping;
  ArenaLayout layout;
  ArenaOptions options;
  int rank;
  int size;
  size_t region_bytes;
  int spins;  // pauses before giving up the core
  ArenaHeader* header;
  RankSlot* slots;
  Signal* tiles_done;  // two
  std::byte* staging_memory;
  size_t staging_bytes;           // of each rank
  std::shared_ptr<Arena> parent;  // of a group: all ranks of the segment
  std::vector<int> members;       // of a group: their ranks in `parent`
  GroupHeader* group = nullptr;
  std::string name;  // " among ranks [4, 0]"
  size_t cursor = 0;
  uint32_t op = 0;          // the last operation of this rank
  std::vector<int> pidfds;  // one a rank, -1 for those that share this process; of `parent`, if any
  Nanoseconds soft_deadline{0};
  OnStall on_stall;
  std::atomic<uint32_t> waiting_in{0};    // the operation of the last long wait ...
  std::atomic<int64_t> waiting_since{0};  // ... and when that began, in ns of the steady clock
  uint32_t reported = 0;                  // the last operation told to on_stall

  // In the segment.
  int place(int r) const { return members.empty() ? r : members[static_cast<size_t>(r)]; }
  std::byte* regions() const { return mapping->base + layout.regions; }
  std::byte* region(int r) const {
    return regions() + static_cast<size_t>(place(r)) * region_bytes;
  }
  std::byte* staging(int r) const {
    return staging_memory + static_cast<size_t>(r) * staging_bytes;
  }
  GroupHeader* group_at(int number) const {
    return reinterpret_cast<GroupHeader*>(mapping->base + layout.groups +
                                          static_cast<size_t>(number) * layout.group_bytes);
  }
  // The bytes that `from` sends to `to`.
  std::byte* ring(int from, int to) const {
    return mapping->base + layout.rings + (static_cast<size_t>(from) * size + to) * kRingBytes;
  }
  int number(int r) const;  // what people call the rank
  std::string label(int r) const;

  bool failed() const {
    return header->failure.load(std::memory_order_acquire) != ArenaHeader::fine;
  }
  void fail(const PeerLoss& loss);
  [[noreturn]] void throw_loss() const;
  void check() const {
    if (failed()) throw_loss();
  }
  // Latches the loss of peers that died without leaving. True if there are any.
  bool look_for_dead();
  std::string stall_report() const;
  std::optional<Stall> stall() const;

  // Waits until ready(). `signal` changes when ready() may have; `on_nap` is called every few
  // milliseconds while waiting, and may fail the arena. Throws peer_lost.
  template <class Ready, class OnNap>
  void wait(Signal& signal, const Ready& ready, const OnNap& on_nap);

  // Starts operation ++op: publishes what it is, and waits until all ranks have arrived at the
  // same. Throws conflict if a peer does something else.
  uint32_t begin(OpKind kind, uint64_t bytes, uint64_t signature);
  void end() { slots[rank].inside.store(0, std::memory_order_relaxed); }
};

constexpr Nanoseconds kYieldFor = std::chrono::microseconds(300);
constexpr int kMostYields = 16;
constexpr Nanoseconds kNap = std::chrono::milliseconds(10);

// What a thread that waits does before it sleeps: some pauses, then for kYieldFor pauses between
// yields that lie ever further apart; where a pause only keeps the peer from running, yields alone.
// There are at most kMostYields: beside busy programs Linux may charge each with a slice of
// processor time that the thread did not have, so that some hundred of them, which take no time
// where nobody of the thread's own group wants the core, put off its next turn by a second.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Patience(int spins) : spins_(spins) {}

  // Pauses or yields, once. False, without either, once it is time to sleep.
  bool pause() {
    if (pauses_ < spins_) {
      ++pauses_;
      pause_briefly();
      return true;
    }
    const auto now = Clock::now();
    if (yields_ == 0) since_ = next_ = now;
    if (yields_ == kMostYields || now - since_ >= kYieldFor) return false;
    if (now < next_) {
      pause_briefly();
      return true;
    }
    sched_yield();
    ++yields_;
    if (spins_ > 0) {
      next_ = Clock::now() + gap_;
      gap_ = std::min(2 * gap_, kLongestGap);
    }
    return true;
  }
  // When its first pauses were over; after pause() was false.
  Clock::time_point since() const { return since_; }
  int yields() const { return yields_; }

 private:
  static constexpr Nanoseconds kLongestGap = std::chrono::microseconds(32);

  int spins_;
  int pauses_ = 0, yields_ = 0;
  Nanoseconds gap_ = std::chrono::microseconds(1);
  Clock::time_point since_, next_;
};

template <class Ready, class OnNap>
void Arena::Impl::wait(Signal& signal, const Ready& ready, const OnNap& on_nap) {
  using Clock = std::chrono::steady_clock;
  if (ready()) return;
  Patience patience(spins);
  while (patience.pause()) {
    if (ready()) return;
    check();
  }
  const auto start = patience.since();
  if (waiting_in.load() != op) {
    waiting_since.store(Nanoseconds(start.time_since_epoch()).count());
    waiting_in.store(op);
  }
  std::atomic<uint32_t>& waits = slots[rank].waits;
  waits.store(1, std::memory_order_relaxed);
  auto next_look = start + kNap;
  while (!ready()) {
    check();
    const uint32_t seen = signal.value.load(std::memory_order_seq_cst);
    signal.sleep(seen, kNap, [&] { return ready() || failed(); });
    const auto now = Clock::now();
    if (now < next_look) continue;
    next_look = now + kNap;
    if (ready()) break;
    if (!look_for_dead()) on_nap();
    if (soft_deadline.count() > 0 && on_stall && reported != op &&
        now.time_since_epoch() - Nanoseconds(waiting_since.load()) >= soft_deadline) {
      reported = op;
      if (const auto stalled = stall()) on_stall(*stalled);
    }
    if (options.given_up && options.given_up()) fail({{}, "the meeting was given up"});
    if (options.stall_deadline.count() > 0 && now - start > options.stall_deadline && !ready()) {
      PeerLoss loss;
      const uint32_t reached = slots[rank].arrived.value.load();
      for (int r = 0; r < size; ++r) {
        if (static_cast<int32_t>(slots[r].arrived.value.load() - reached) < 0) {
          loss.ranks.push_back(r);
        }
      }
      loss.reason = fmt::format(
          "no progress for {} ms; {}",
          std::chrono::duration_cast<std::chrono::milliseconds>(options.stall_deadline).count(),
          stall_report());
      fail(loss);
    }
  }
  waits.store(0, std::memory_order_relaxed);
}

}  // namespace ductile::comm
