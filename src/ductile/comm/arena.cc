#include "ductile/comm/arena.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/comm/arena_impl.h"

namespace ductile::comm {
namespace {

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Of bytes [begin, end) of the segment, which lie at `from`, those that were ever touched. To read
// the others would take memory for them, twice.
void copy_touched(int file, size_t begin, size_t end, const std::byte* from, std::byte* to) {
  for (size_t at = begin; at < end;) {
    const off_t data = lseek(file, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) return;  // nothing from here on
    const off_t hole = data < 0 ? -1 : lseek(file, data, SEEK_HOLE);
    if (hole < 0) fail_errno("look for what is in the arena's segment", errno);
    const size_t first = std::min(static_cast<size_t>(data), end);
    at = std::min(static_cast<size_t>(hole), end);
    std::memcpy(to + (first - begin), from + (first - begin), at - first);
  }
}

}  // namespace

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::none:
      return "nothing";
    case OpKind::barrier:
      return "barrier";
    case OpKind::all_reduce:
      return "all_reduce";
    case OpKind::reduce_scatter:
      return "reduce_scatter";
    case OpKind::all_gather:
      return "all_gather";
    case OpKind::broadcast:
      return "broadcast";
    case OpKind::combine:
      return "combine";
  }
  return "?";
}

ArenaLayout::ArenaLayout(int num_ranks, size_t region_bytes) {
  const size_t ranks = static_cast<size_t>(num_ranks);
  slots = round_up(sizeof(ArenaHeader), 4096);
  staging = slots + round_up(ranks * sizeof(RankSlot), 4096);
  rings = staging + ranks * kStagingBytes;
  groups = rings + ranks * ranks * kRingBytes;
  num_groups = num_ranks > 1 ? 4 * num_ranks : 0;
  group_slots = round_up(sizeof(GroupHeader), 4096);
  group_staging = group_slots + round_up(ranks * sizeof(RankSlot), 4096);
  group_bytes = group_staging + ranks * kGroupStagingBytes;
  regions = round_up(groups + static_cast<size_t>(num_groups) * group_bytes, kHugePage);
  total = regions + ranks * region_bytes;
}

ArenaMapping::ArenaMapping(int fd, size_t size)
    : bytes(size),
      file(fd < 0 ? Descriptor() : opened(fcntl(fd, F_DUPFD_CLOEXEC, 0), "the arena's segment")) {
  // Reserve more than needed, then map over it at a 2 MiB boundary, and give the rest back.
  const size_t reserved = bytes + kHugePage;
  void* const space =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) fail_errno(fmt::format("map {} bytes of arena", bytes), errno);
  const auto start = reinterpret_cast<uintptr_t>(space);
  const auto aligned = round_up(start, kHugePage);
  base = reinterpret_cast<std::byte*>(aligned);
  const int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
  void* const mapped = mmap(base, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  const int error = errno;
  if (aligned > start) munmap(space, aligned - start);
  const size_t tail = start + reserved - (aligned + bytes);
  if (tail > 0) munmap(base + bytes, tail);
  if (mapped == MAP_FAILED) fail_errno(fmt::format("map {} bytes of arena", bytes), error);
}

ArenaMapping::~ArenaMapping() { munmap(base, bytes); }

Arena::Impl::Impl(std::shared_ptr<ArenaMapping> shared, int own_rank, int num_ranks,
                  ArenaOptions opts)
    : mapping(std::move(shared)),
      layout(num_ranks, opts.region_bytes),
      options(std::move(opts)),
      rank(own_rank),
      size(num_ranks),
      region_bytes(options.region_bytes),
      header(reinterpret_cast<ArenaHeader*>(mapping->base)),
      slots(reinterpret_cast<RankSlot*>(mapping->base + layout.slots)),
      tiles_done(header->tiles_done),
      staging_memory(mapping->base + layout.staging),
      staging_bytes(kStagingBytes),
      pidfds(static_cast<size_t>(num_ranks), -1) {
  // Where ranks share cores, a pause only keeps the peer from running.
  spins = num_ranks <= sysconf(_SC_NPROCESSORS_ONLN) ? 200 : 0;
#if defined(MADV_HUGEPAGE)
  if (options.huge_pages) {
    madvise(mapping->base + layout.regions, layout.total - layout.regions, MADV_HUGEPAGE);
  }
#endif
  slots[rank].joined.store(1);
}

Arena::Impl::~Impl() {
  RankSlot& own = slots[rank];
  own.left.store(1);
  // Whoever waits for this rank looks again.
  futex_wake_all(own.arrived.value);
  for (int r = 0; r < size; ++r) futex_wake_all(slots[r].doorbell.value);
  if (group != nullptr) {
    if (group->present.fetch_sub(1) == 1) group->taken.store(0);
    return;
  }
  for (const int fd : pidfds) {
    if (fd >= 0) close(fd);
  }
}

std::string Arena::Impl::label(int r) const { return fmt::format("rank {}", number(r)); }

int Arena::Impl::number(int r) const {
  const auto i = static_cast<size_t>(place(r));
  return i < options.labels.size() ? options.labels[i] : place(r);
}

void Arena::Impl::fail(const PeerLoss& loss) {
  uint32_t expected = ArenaHeader::fine;
  if (!header->failure.compare_exchange_strong(expected, ArenaHeader::failing)) return;
  const size_t length = std::min(loss.reason.size(), sizeof header->reason - 1);
  std::memcpy(header->reason, loss.reason.data(), length);
  header->reason[length] = 0;
  header->num_lost = 0;
  for (const int r : loss.ranks) {
    if (header->num_lost < kMaxRanks) header->lost[header->num_lost++] = place(r);
  }
  header->failure.store(ArenaHeader::failed, std::memory_order_seq_cst);
  for (int r = 0; r < size; ++r) {
    futex_wake_all(slots[r].arrived.value);
    futex_wake_all(slots[r].doorbell.value);
  }
  for (int i = 0; i < 2; ++i) futex_wake_all(tiles_done[i].value);
}

void Arena::Impl::throw_loss() const {
  // The rank that failed the arena writes the reason at once; if it died over that, do without.
  const auto start = std::chrono::steady_clock::now();
  while (header->failure.load(std::memory_order_acquire) == ArenaHeader::failing &&
         std::chrono::steady_clock::now() - start < std::chrono::milliseconds(5)) {
    sched_yield();
  }
  const bool known = header->failure.load(std::memory_order_acquire) == ArenaHeader::failed;
  ductile::fail(ErrorCode::peer_lost, "shared memory of {} ranks, generation {}: {}", size,
                header->generation, known ? header->reason : "a rank died while reporting a loss");
}

bool Arena::Impl::look_for_dead() {
  std::array<pollfd, kMaxRanks> polled;
  std::array<int, kMaxRanks> who;
  nfds_t count = 0;
  for (int r = 0; r < size; ++r) {
    if (pidfds[r] < 0) continue;
    polled[count] = {pidfds[r], POLLIN, 0};
    who[count++] = r;
  }
  if (count == 0 || poll(polled.data(), count, 0) <= 0) return false;
  PeerLoss loss;
  for (nfds_t i = 0; i < count; ++i) {
    if (polled[i].revents == 0) continue;
    if (slots[who[i]].left.load()) continue;  // it said goodbye before it ended
    loss.ranks.push_back(who[i]);
    loss.reason += (loss.reason.empty() ? "" : ", ") + label(who[i]);
  }
  if (loss.ranks.empty()) return false;
  loss.reason += " died";
  if (const std::string report = stall_report(); !report.empty()) loss.reason += "; " + report;
  fail(loss);
  return true;
}

std::string Arena::Impl::stall_report() const {
  // The operation furthest ahead that a rank is in, and who has not come to it.
  uint32_t front = 0;
  int at = -1;
  for (int r = 0; r < size; ++r) {
    const uint32_t arrived = slots[r].arrived.value.load(std::memory_order_relaxed);
    if (!slots[r].inside.load(std::memory_order_relaxed)) continue;
    if (at < 0 || static_cast<int32_t>(arrived - front) > 0) {
      front = arrived;
      at = r;
    }
  }
  if (at < 0) return "";
  const auto kind = static_cast<OpKind>(slots[at].kind.load(std::memory_order_relaxed));
  std::string text = fmt::format("{} #{} of {} bytes{}: ", name_of(kind), front,
                                 slots[at].bytes.load(std::memory_order_relaxed), name);
  std::string missing, busy;
  for (int r = 0; r < size; ++r) {
    const uint32_t arrived = slots[r].arrived.value.load(std::memory_order_relaxed);
    if (static_cast<int32_t>(arrived - front) < 0) {
      missing += fmt::format("{}{} (last in #{})", missing.empty() ? "" : ", ", label(r), arrived);
    } else if (slots[r].inside.load(std::memory_order_relaxed)) {
      busy += (busy.empty() ? "" : ", ") + label(r);
    }
  }
  if (!missing.empty()) return text + "waiting for " + missing;
  return text + "all arrived; not done: " + busy;
}

std::optional<Stall> Arena::Impl::stall() const {
  const RankSlot& own = slots[rank];
  const uint32_t m = own.arrived.value.load(std::memory_order_relaxed);
  if (own.waits.load(std::memory_order_relaxed) == 0 || waiting_in.load() != m) return {};
  Stall stall;
  const auto kind = static_cast<OpKind>(own.kind.load(std::memory_order_relaxed));
  stall.operation = fmt::format("{} of {} bytes (shared memory){}", name_of(kind),
                                own.bytes.load(std::memory_order_relaxed), name);
  stall.sequence = m;
  stall.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch() -
                                    Nanoseconds(waiting_since.load()))
          .count();
  const auto missing = [&](const RankSlot& slot) {
    return static_cast<int32_t>(slot.arrived.value.load(std::memory_order_relaxed) - m) < 0;
  };
  const auto at_work = [&](const RankSlot& slot) {
    return slot.arrived.value.load(std::memory_order_relaxed) == m &&
           slot.inside.load(std::memory_order_relaxed) &&
           !slot.waits.load(std::memory_order_relaxed);
  };
  const auto add_all = [&](const auto& predicate) {
    for (int r = 0; r < size; ++r) {
      if (predicate(slots[r])) stall.ranks.push_back(number(r));
    }
  };
  add_all(missing);
  if (stall.ranks.empty()) add_all(at_work);
  std::sort(stall.ranks.begin(), stall.ranks.end());
  return stall;
}

uint32_t Arena::Impl::begin(OpKind kind, uint64_t bytes, uint64_t signature) {
  RankSlot& own = slots[rank];
  const uint32_t m = ++op;
  signature =
      (signature * 0x9e3779b97f4a7c15u + bytes) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(kind);
  own.op[m % 2].signature = signature;
  own.claims[m % 2].next.store(0, std::memory_order_relaxed);
  if (rank == 0) tiles_done[m % 2].value.store(0, std::memory_order_relaxed);
  own.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  own.bytes.store(bytes, std::memory_order_relaxed);
  own.inside.store(1, std::memory_order_relaxed);
  check();
  own.arrived.set(m);
  for (int step = 1; step < size; ++step) {
    const int r = (rank + step) % size;
    RankSlot& peer = slots[r];
    const auto arrived = [&] {
      return static_cast<int32_t>(peer.arrived.value.load(std::memory_order_acquire) - m) >= 0;
    };
    wait(peer.arrived, arrived, [&] {
      if (peer.left.load() && !arrived()) {
        fail({{r}, fmt::format("{} left; {}", label(r), stall_report())});
      }
    });
    if (peer.op[m % 2].signature != signature) {
      const std::string text = fmt::format(
          "operation #{}: {} calls {} of {} bytes, {} something else ({} of {} bytes): all ranks "
          "must call the same collectives, in the same order, with equal sizes and offsets",
          m, label(rank), name_of(kind), bytes, label(r),
          name_of(static_cast<OpKind>(peer.kind.load())), peer.bytes.load());
      fail({{}, text});
      ductile::fail(ErrorCode::conflict, "{}", text);
    }
  }
  return m;
}

Arena::Arena(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Arena::~Arena() = default;

std::vector<std::unique_ptr<Arena>> Arena::for_threads(int num_ranks, const ArenaOptions& options) {
  if (num_ranks < 1 || num_ranks > kMaxRanks) {
    ductile::fail(ErrorCode::invalid_argument, "an arena of {} ranks: 1 to {} are possible",
                  num_ranks, kMaxRanks);
  }
  ArenaOptions rounded = options;
  rounded.region_bytes = round_up(std::max<size_t>(options.region_bytes, 1), kHugePage);
  const ArenaLayout layout(num_ranks, rounded.region_bytes);
  auto mapping = std::make_shared<ArenaMapping>(-1, layout.total);
  auto* const header = new (mapping->base) ArenaHeader{};
  header->generation = options.generation;
  header->num_ranks = static_cast<uint32_t>(num_ranks);
  header->region_bytes = rounded.region_bytes;
  std::vector<std::unique_ptr<Arena>> arenas;
  for (int r = 0; r < num_ranks; ++r) {
    arenas.push_back(
        std::unique_ptr<Arena>(new Arena(std::make_unique<Impl>(mapping, r, num_ranks, rounded))));
  }
  return arenas;
}

int Arena::rank() const { return impl_->rank; }
int Arena::size() const { return impl_->size; }
uint64_t Arena::generation() const { return impl_->header->generation; }

std::byte* Arena::allocate(size_t bytes) {
  DUCTILE_CHECK(impl_->parent == nullptr, "a group has no memory: allocate from the whole arena");
  const size_t start = round_up(impl_->cursor, bytes >= kHugePage ? kHugePage : 64);
  if (start > impl_->region_bytes || bytes > impl_->region_bytes - start) {
    ductile::fail(ErrorCode::unavailable,
                  "{} bytes do not fit into the arena's region of {} bytes, of which {} are taken: "
                  "ask for larger regions",
                  bytes, impl_->region_bytes, impl_->cursor);
  }
  impl_->cursor = start + bytes;
  return impl_->region(impl_->rank) + start;
}

size_t Arena::room() const {
  const size_t start = round_up(impl_->cursor, kHugePage);
  return impl_->region_bytes - std::min(start, impl_->region_bytes);
}

std::shared_ptr<const void> Arena::memory() const { return impl_->mapping; }

size_t Arena::mark() const { return impl_->cursor; }

void Arena::release(size_t mark) {
  DUCTILE_CHECK(mark <= impl_->cursor, "mark {} of {}", mark, impl_->cursor);
  impl_->cursor = mark;
}

bool Arena::holds(const std::byte* p, size_t bytes) const {
  const std::byte* const own = impl_->region(impl_->rank);
  const auto offset = reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(own);
  return offset <= impl_->region_bytes && bytes <= impl_->region_bytes - offset;
}

std::byte* Arena::peer(int peer, const std::byte* own) const {
  if (!holds(own, 0)) return nullptr;
  return impl_->region(peer) + (own - impl_->region(impl_->rank));
}

void Arena::fail(PeerLoss loss) {
  if (loss.reason.empty()) loss.reason = "reported lost";
  if (const std::string report = impl_->stall_report(); !report.empty()) {
    loss.reason += "; " + report;
  }
  impl_->fail(loss);
}

bool Arena::failed() const { return impl_->failed(); }

std::optional<PeerLoss> Arena::loss() const {
  const ArenaHeader& header = *impl_->header;
  if (!failed()) return {};
  PeerLoss loss;
  if (header.failure.load(std::memory_order_acquire) == ArenaHeader::failed) {
    loss.ranks.assign(header.lost, header.lost + header.num_lost);
    loss.reason = header.reason;
  }
  return loss;
}

void Arena::check(bool look) {
  if (look) impl_->look_for_dead();
  impl_->check();
}

void Arena::report_stalls(std::chrono::nanoseconds soft_deadline, OnStall on_stall) {
  impl_->soft_deadline = soft_deadline;
  impl_->on_stall = std::move(on_stall);
}

std::optional<Stall> Arena::stall() const { return impl_->stall(); }

std::string Arena::stall_report() const { return impl_->stall_report(); }

void Arena::detach() {
  const auto apart = [](int fd) { return fd >= 0; };
  if (std::none_of(impl_->pidfds.begin(), impl_->pidfds.end(), apart)) return;  // one process
  std::byte* const own = impl_->region(impl_->rank);
  void* const copy = mmap(nullptr, impl_->region_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (copy == MAP_FAILED) fail_errno("copy the arena's region", errno);
  const auto begin = static_cast<size_t>(own - impl_->mapping->base);
  copy_touched(impl_->mapping->file.get(), begin, begin + impl_->cursor, own,
               static_cast<std::byte*>(copy));
  // By its number: UCX puts an mremap of its own before the C library's, which drops the address.
  if (syscall(SYS_mremap, copy, impl_->region_bytes, impl_->region_bytes,
              MREMAP_MAYMOVE | MREMAP_FIXED, own) == -1) {
    const int error = errno;
    munmap(copy, impl_->region_bytes);
    fail_errno("detach the arena's region", error);
  }
}

}  // namespace ductile::comm
