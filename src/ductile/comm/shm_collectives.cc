#include "ductile/comm/shm_collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/comm/arena_impl.h"
#include "ductile/comm/reduce_kernels.h"

namespace ductile::comm {
namespace {

// A tile is what a rank takes at a time: long enough for the hardware's prefetching, short enough
// that a rank which is put off its core holds up little.
constexpr size_t kTileBytes = size_t{32} << 10;
// Of the vectors of a combine, so that the intermediate ones stay in the cache next to the core.
constexpr size_t kCombineBytes = size_t{4} << 10;

using Bases = std::array<std::byte*, Arena::kMaxRanks>;

Bases bases_of(Arena& arena, std::byte* own) {
  Bases bases;
  for (int r = 0; r < arena.size(); ++r) bases[r] = arena.peer(r, own);
  return bases;
}

void require_inside(Arena& arena, const std::byte* data, size_t bytes) {
  if (arena.holds(data, bytes)) return;
  fail(ErrorCode::invalid_argument,
       "a vector of {} bytes lies outside of the arena's region: take it from allocate()", bytes);
}

uint64_t offset_of(Arena& arena, const std::byte* data) {
  return static_cast<uint64_t>(data - arena.impl().region(arena.rank()));
}

// Runs tile(slice, begin, end) for the tiles of all slices [bounds[s], bounds[s + 1]), each on the
// rank that takes it first: a rank starts with its own slice, then helps the next ones. Returns
// once all tiles are done, by whomever; waits for no rank that has none.
template <class Tile>
void run_tiles(Arena::Impl& arena, uint32_t m, std::span<const size_t> bounds, size_t tile_elements,
               const Tile& tile) {
  const int size = arena.size;
  uint32_t total = 0;
  for (int s = 0; s < size; ++s) {
    total += static_cast<uint32_t>((bounds[s + 1] - bounds[s] + tile_elements - 1) / tile_elements);
  }
  Signal& done = arena.tiles_done[m % 2];
  uint32_t finished = 0;
  for (int step = 0; step < size; ++step) {
    const int s = (arena.rank + step) % size;
    const size_t length = bounds[s + 1] - bounds[s];
    const auto tiles = static_cast<uint32_t>((length + tile_elements - 1) / tile_elements);
    std::atomic<uint32_t>& next = arena.slots[s].claims[m % 2].next;
    while (next.load(std::memory_order_relaxed) < tiles) {
      const uint32_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= tiles) break;
      const size_t begin = bounds[s] + i * tile_elements;
      tile(s, begin, std::min(begin + tile_elements, bounds[s + 1]));
      ++finished;
      if (arena.failed()) arena.throw_loss();
    }
  }
  if (finished > 0) done.add(finished);
  const auto all_done = [&] { return done.value.load(std::memory_order_acquire) == total; };
  arena.wait(done, all_done, [&] {
    for (int r = 0; r < size; ++r) {  // a rank that left in the midst of an operation
      if (arena.slots[r].left.load() && arena.slots[r].inside.load()) {
        arena.fail({{r}, arena.label(r) + " left; " + arena.stall_report()});
      }
    }
  });
}

// Near-equal slices on cache-line boundaries.
std::vector<size_t> equal_slices(size_t n, size_t element, int size) {
  const size_t line = std::max<size_t>(64 / element, 1);
  const size_t lines = (n + line - 1) / line, ranks = static_cast<size_t>(size);
  std::vector<size_t> bounds(ranks + 1);
  for (size_t r = 0; r <= ranks; ++r) bounds[r] = std::min(n, lines * r / ranks * line);
  return bounds;
}

void check_bounds(Arena& arena, std::span<const size_t> bounds) {
  if (bounds.size() != static_cast<size_t>(arena.size()) + 1 ||
      !std::is_sorted(bounds.begin(), bounds.end())) {
    fail(ErrorCode::invalid_argument,
         "{} slice bounds for {} ranks: give one more than ranks, ascending", bounds.size(),
         arena.size());
  }
}

uint64_t hash_of(std::span<const size_t> bounds) {
  uint64_t hash = bounds.size();
  for (const size_t b : bounds) hash = (hash ^ b) * 0x9e3779b97f4a7c15u;
  return hash;
}

uint64_t mix_of(uint64_t a, uint64_t b) { return (a ^ (b + 1) * 0xbf58476d1ce4e5b9u) * 31; }

// One exchange through the slots: every rank sums for itself, so that nobody waits for a result.
void all_reduce_small(Arena& arena, DType type, std::byte* data, size_t n) {
  Arena::Impl& impl = arena.impl();
  const size_t bytes = n * size_of(type);
  const size_t slot = (impl.op + 1) % 2 * kSlotBytes;
  if (bytes > 0) std::memcpy(impl.staging(impl.rank) + slot, data, bytes);
  impl.begin(OpKind::all_reduce, bytes, static_cast<uint64_t>(type));
  std::array<const std::byte*, Arena::kMaxRanks> ins;
  for (int r = 0; r < impl.size; ++r) ins[r] = impl.staging(r) + slot;
  sum(type, data, {ins.data(), static_cast<size_t>(impl.size)}, n);
  impl.end();
}

void all_reduce_at(Arena& arena, DType type, const Bases& bases, size_t n, uint64_t signature) {
  Arena::Impl& impl = arena.impl();
  const size_t element = size_of(type), ranks = static_cast<size_t>(impl.size);
  const std::vector<size_t> bounds = equal_slices(n, element, impl.size);
  const uint32_t m = impl.begin(OpKind::all_reduce, n * element, signature);
  run_tiles(impl, m, bounds, kTileBytes / element, [&](int, size_t begin, size_t end) {
    Bases at;
    for (size_t r = 0; r < ranks; ++r) at[r] = bases[r] + begin * element;
    sum_to_all(type, {at.data(), ranks}, {at.data(), ranks}, end - begin);
  });
  impl.end();
}

void require_sum(DType type) {
  if (!can_sum(type)) (void)reduce_kernels().sum(type);  // throws, and says which can
}

}  // namespace

void all_reduce(Arena& arena, DType type, std::byte* data, size_t n) {
  require_sum(type);
  Arena::Impl& impl = arena.impl();
  const size_t element = size_of(type);
  if (n * element <= kSlotBytes) return all_reduce_small(arena, type, data, n);
  if (arena.holds(data, n * element)) {
    return all_reduce_at(arena, type, bases_of(arena, data), n,
                         mix_of(offset_of(arena, data), static_cast<uint64_t>(type)));
  }
  // The slots come first in the staging memory: a peer may still read one of them.
  constexpr size_t kFirst = 2 * kSlotBytes;
  const size_t longest = impl.staging_bytes - kFirst;
  Bases bases;
  for (int r = 0; r < impl.size; ++r) bases[r] = impl.staging(r) + kFirst;
  for (size_t begin = 0; begin < n; begin += longest / element) {
    const size_t count = std::min(n - begin, longest / element);
    std::memcpy(bases[impl.rank], data + begin * element, count * element);
    all_reduce_at(arena, type, bases, count, ~static_cast<uint64_t>(type));
    std::memcpy(data + begin * element, bases[impl.rank], count * element);
  }
}

void reduce_scatter(Arena& arena, DType type, std::byte* data, std::span<const size_t> bounds) {
  require_sum(type);
  check_bounds(arena, bounds);
  Arena::Impl& impl = arena.impl();
  const size_t element = size_of(type), ranks = static_cast<size_t>(impl.size);
  require_inside(arena, data, bounds.back() * element);
  const Bases bases = bases_of(arena, data);
  const uint64_t signature =
      mix_of(mix_of(offset_of(arena, data), static_cast<uint64_t>(type)), hash_of(bounds));
  const uint32_t m = impl.begin(OpKind::reduce_scatter, bounds.back() * element, signature);
  run_tiles(impl, m, bounds, kTileBytes / element, [&](int slice, size_t begin, size_t end) {
    Bases at;
    for (size_t r = 0; r < ranks; ++r) at[r] = bases[r] + begin * element;
    sum(type, at[slice], {at.data(), ranks}, end - begin);
  });
  impl.end();
}

void all_gather(Arena& arena, DType type, std::byte* data, std::span<const size_t> bounds) {
  check_bounds(arena, bounds);
  Arena::Impl& impl = arena.impl();
  const size_t element = size_of(type);
  require_inside(arena, data, bounds.back() * element);
  const Bases bases = bases_of(arena, data);
  const uint64_t signature =
      mix_of(mix_of(offset_of(arena, data), static_cast<uint64_t>(type)), hash_of(bounds));
  const uint32_t m = impl.begin(OpKind::all_gather, bounds.back() * element, signature);
  run_tiles(impl, m, bounds, kTileBytes / element, [&](int slice, size_t begin, size_t end) {
    for (int r = 0; r < impl.size; ++r) {
      if (r == slice) continue;
      std::memcpy(bases[r] + begin * element, bases[slice] + begin * element,
                  (end - begin) * element);
    }
  });
  impl.end();
}

void broadcast(Arena& arena, std::byte* data, size_t bytes, int root) {
  Arena::Impl& impl = arena.impl();
  if (root < 0 || root >= impl.size) {
    fail(ErrorCode::invalid_argument, "broadcast from rank {} of {}", root, impl.size);
  }
  const uint64_t from = static_cast<uint64_t>(root);
  if (bytes > kSlotBytes && arena.holds(data, bytes)) {
    const Bases bases = bases_of(arena, data);
    const std::vector<size_t> bounds = equal_slices(bytes, 1, impl.size);
    const uint32_t m = impl.begin(OpKind::broadcast, bytes, mix_of(offset_of(arena, data), from));
    run_tiles(impl, m, bounds, kTileBytes, [&](int, size_t begin, size_t end) {
      for (int r = 0; r < impl.size; ++r) {
        if (r != root) std::memcpy(bases[r] + begin, bases[root] + begin, end - begin);
      }
    });
    impl.end();
    return;
  }
  // Through the root's slots by turns; outside of the arena nobody else can reach `data`.
  size_t at = 0;
  do {
    const size_t count = std::min(bytes - at, kSlotBytes);
    const size_t slot = (impl.op + 1) % 2 * kSlotBytes;
    if (impl.rank == root && count > 0) std::memcpy(impl.staging(root) + slot, data + at, count);
    impl.begin(OpKind::broadcast, count, from);
    if (impl.rank != root && count > 0) std::memcpy(data + at, impl.staging(root) + slot, count);
    impl.end();
    at += count;
  } while (at < bytes);
}

void barrier(Arena& arena) {
  arena.impl().begin(OpKind::barrier, 0, 0);
  arena.impl().end();
}

void all_reduce_combine(Arena& arena, DType type, std::span<const std::byte* const> inputs,
                        std::span<const Combine> steps, std::byte* out, size_t n) {
  require_sum(type);
  Arena::Impl& impl = arena.impl();
  const size_t element = size_of(type), ranks = static_cast<size_t>(impl.size);
  require_inside(arena, out, n * element);
  if (inputs.empty()) fail(ErrorCode::invalid_argument, "a combine of no vectors");
  uint64_t signature = mix_of(offset_of(arena, out), static_cast<uint64_t>(type));
  const std::byte* const base = impl.regions();
  const size_t all = impl.layout.total - impl.layout.regions;
  for (const std::byte* input : inputs) {
    const auto offset = reinterpret_cast<uintptr_t>(input) - reinterpret_cast<uintptr_t>(base);
    if (offset > all || n * element > all - offset) {
      fail(ErrorCode::invalid_argument, "an input of a combine lies outside of the arena");
    }
    signature = mix_of(signature, offset);
  }
  const int num_inputs = static_cast<int>(inputs.size());
  for (const Combine& s : steps) {
    if (s.left < 0 || s.left >= num_inputs || s.right < 0 || s.right >= num_inputs) {
      fail(ErrorCode::invalid_argument, "combine step: value {} += value {}, of {} inputs", s.left,
           s.right, num_inputs);
    }
    signature =
        mix_of(mix_of(signature, static_cast<uint64_t>(s.left)), static_cast<uint64_t>(s.right));
  }

  // A value that is added to moves from its input to memory of its own, a piece long.
  const size_t piece = kCombineBytes / element;
  std::vector<std::byte> scratch(inputs.size() * kCombineBytes + 64);
  std::byte* const first = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
  std::vector<const std::byte*> value(inputs.size());
  const Bases bases = bases_of(arena, out);
  const std::vector<size_t> bounds = equal_slices(n, element, impl.size);
  const bool straight = !steps.empty() && steps.back().left == 0;
  const uint32_t m = impl.begin(OpKind::combine, n * element, signature);
  run_tiles(impl, m, bounds, kTileBytes / element, [&](int, size_t tile_begin, size_t tile_end) {
    for (size_t begin = tile_begin; begin < tile_end; begin += piece) {
      const size_t count = std::min(piece, tile_end - begin);
      for (size_t v = 0; v < inputs.size(); ++v) value[v] = inputs[v] + begin * element;
      Bases outs;
      for (size_t r = 0; r < ranks; ++r) outs[r] = bases[r] + begin * element;
      for (const Combine& s : steps.first(steps.size() - (straight ? 1 : 0))) {
        std::byte* const to = first + static_cast<size_t>(s.left) * kCombineBytes;
        add(type, to, value[s.left], value[s.right], count);
        value[s.left] = to;
      }
      if (straight) {  // the last addition goes to all outputs at once
        const std::byte* const last[] = {value[0], value[steps.back().right]};
        sum_to_all(type, {outs.data(), ranks}, last, count);
        continue;
      }
      for (size_t r = 0; r < ranks; ++r) {
        if (outs[r] != value[0]) std::memcpy(outs[r], value[0], count * element);
      }
    }
  });
  impl.end();
}

}  // namespace ductile::comm
