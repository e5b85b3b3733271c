// Algorithms that see all ranks alike: ring, doubling, halving, direct, and the other collectives.
#include <algorithm>
#include <bit>

#include "ductile/base/error.h"
#include "ductile/comm/schedule_impl.h"

namespace ductile::comm {
namespace {

RankGroup everyone(const Schedule& list) {
  RankGroup group;
  group.index = list.rank;
  group.ranks.resize(list.num_ranks);
  for (int r = 0; r < list.num_ranks; ++r) group.ranks[r] = r;
  return group;
}

// Rank i's share of a buffer whose chunks are dealt out in rank order.
Segments shares(int chunks_a_rank) {
  return [chunks_a_rank](int i) {
    return Chunks{BufferName::out, i * chunks_a_rank, chunks_a_rank};
  };
}

SegmentRuns share_runs(int chunks_a_rank) {
  return [chunks_a_rank](int begin, int count) {
    return Chunks{BufferName::out, begin * chunks_a_rank, count * chunks_a_rank};
  };
}

// Ends a reduce-scatter of an all-reduce: rounds the own share, where it is in `out`.
BufferName settle(Builder& b, BufferName where, Chunks own) {
  if (where == BufferName::out) b.round(own);
  return where;
}

bool alone(Builder& b) {
  if (b.list.num_ranks > 1) return false;
  b.copy({BufferName::out, 0, b.list.chunks_per_block},
         {BufferName::in, 0, b.list.chunks_per_block});
  return true;
}

}  // namespace

void ring_all_reduce(Schedule& list, const ScheduleOptions& options) {
  Builder b{list, options.wire};
  const int k = options.pipeline;
  list.chunks_per_block = list.num_ranks * k;
  if (alone(b)) return;
  const RankGroup group = everyone(list);
  const Segments segment = shares(k);
  ring_reduce_scatter(b, group, segment, BufferName::in, BufferName::out, k, 0);
  settle(b, BufferName::out, segment(list.rank));
  ring_all_gather(b, group, segment, BufferName::out, k, 0);
}

void direct_all_reduce(Schedule& list, const ScheduleOptions& options) {
  Builder b{list, options.wire};
  const int k = options.pipeline;
  list.chunks_per_block = list.num_ranks * k;
  if (alone(b)) return;
  const RankGroup group = everyone(list);
  const Segments segment = shares(k);
  direct_reduce_scatter(b, group, segment, BufferName::in, BufferName::out, k, 0);
  settle(b, BufferName::out, segment(list.rank));
  direct_all_gather(b, group, segment, BufferName::out, k, 0);
}

void halving_doubling_all_reduce(Schedule& list, const ScheduleOptions& options) {
  Builder b{list, options.wire};
  const int k = options.pipeline;
  list.chunks_per_block = list.num_ranks * k;
  if (alone(b)) return;
  const RankGroup group = everyone(list);
  halving_reduce_scatter(b, group, share_runs(k), BufferName::in, BufferName::out, k, 0);
  settle(b, BufferName::out, shares(k)(list.rank));
  doubling_all_gather(b, group, share_runs(k), k, 0);
}

// Ranks beyond a power of two hand their vector to a neighbour first and get the sum back at the
// end. Both partners of an exchange add the same two values, so all end with the same bits.
void recursive_doubling_all_reduce(Schedule& list, const ScheduleOptions& options) {
  Builder b{list, options.wire};
  list.chunks_per_block = options.pipeline;
  if (alone(b)) return;
  const int n = list.num_ranks;
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  const int extra = n - power;
  const Chunks all{BufferName::out, 0, options.pipeline};
  const auto pieces = split(all, options.pipeline);
  const bool folded = list.rank < 2 * extra;
  if (folded && list.rank % 2 == 0) {
    for (const Chunks& c : pieces) b.send(list.rank + 1, in_buffer(BufferName::in, c));
    for (const Chunks& c : pieces) b.receive(list.rank + 1, c);
    return;
  }
  BufferName have = BufferName::in;
  if (folded) {
    for (const Chunks& c : pieces) b.receive_reduce(list.rank - 1, c, in_buffer(have, c));
    have = BufferName::out;
  }
  const int id = folded ? list.rank / 2 : list.rank - extra;
  for (int mask = 1; mask < power; mask *= 2) {
    const int other = id ^ mask;
    const int peer = other < extra ? 2 * other + 1 : other + extra;
    if (options.wire) {  // what the partner adds is rounded, so what this rank adds must be too
      if (have == BufferName::in) b.copy(all, in_buffer(have, all));
      have = BufferName::out;
      b.round(all);
    }
    for (const Chunks& c : pieces) {
      b.send(peer, in_buffer(have, c));
      b.receive_reduce(peer, c, in_buffer(have, c));
    }
    have = BufferName::out;
  }
  b.round(all);
  if (folded) {
    for (const Chunks& c : pieces) b.send(list.rank - 1, c);
  }
}

void make_reduce_scatter(Schedule& list, const ScheduleOptions& options) {
  Builder b{list, options.wire};
  const int k = options.pipeline;
  list.in_blocks = list.num_ranks;
  list.chunks_per_block = k;
  if (alone(b)) return;
  const RankGroup group = everyone(list);
  const Chunks own{BufferName::scratch, list.rank * k, k};
  list.mirror_count = k;
  if (list.algorithm == Algorithm::halving_doubling) {
    list.scratch_chunks = list.num_ranks * k;
    halving_reduce_scatter(b, group, share_runs(k), BufferName::in, BufferName::scratch, k, 0);
    b.copy({BufferName::out, 0, k}, own);
    return;
  }
  if (list.algorithm == Algorithm::ring) {
    list.scratch_chunks = list.num_ranks * k;
    ring_reduce_scatter(b, group, shares(k), BufferName::in, BufferName::scratch, k, 0);
  } else {
    direct_reduce_scatter(b, group, shares(k), BufferName::in, BufferName::scratch, k, 0);
  }
  // The own share is summed in `out` itself.
  const auto rename = [&](Chunks& c) {
    if (c.buffer == BufferName::scratch && own.begin <= c.begin && c.end() <= own.end()) {
      c = {BufferName::out, c.begin - own.begin, c.count};
    }
  };
  for (Step& step : list.steps) {
    rename(step.dst);
    rename(step.a);
  }
}

void make_all_gather(Schedule& list, const ScheduleOptions& options) {
  Builder b{list, options.wire};
  const int k = options.pipeline;
  list.out_blocks = list.num_ranks;
  list.chunks_per_block = k;
  const RankGroup group = everyone(list);
  const Chunks own = shares(k)(list.rank);
  b.copy(own, {BufferName::in, 0, k});
  b.round(own);
  if (list.algorithm == Algorithm::ring) {
    ring_all_gather(b, group, shares(k), BufferName::out, k, 0);
  } else if (list.algorithm == Algorithm::direct) {
    direct_all_gather(b, group, shares(k), BufferName::out, k, 0);
  } else {
    doubling_all_gather(b, group, share_runs(k), k, 0);
  }
}

// ring: a chain from the root on, one piece after the other; otherwise a binomial tree.
void make_broadcast(Schedule& list, const ScheduleOptions& options) {
  Builder b{list, options.wire};
  const int n = list.num_ranks;
  const int k = options.pipeline;
  list.chunks_per_block = k;
  const Chunks all{BufferName::out, 0, k};
  const int place = (list.rank - options.root + n) % n;
  const auto at = [&](int p) { return (p + options.root) % n; };
  if (place == 0) {
    b.copy(all, in_buffer(BufferName::in, all));
    b.round(all);
  }
  const auto pieces = split(all, k);
  if (list.algorithm == Algorithm::ring) {
    for (const Chunks& c : pieces) {
      if (place > 0) b.receive(at(place - 1), c);
      if (place + 1 < n) b.send(at(place + 1), c);
    }
    return;
  }
  int mask = 1;
  while (mask < n && (place & mask) == 0) mask *= 2;
  if (place > 0) {
    for (const Chunks& c : pieces) b.receive(at(place - mask), c);
  }
  for (mask /= 2; mask > 0; mask /= 2) {
    if (place + mask >= n) continue;
    for (const Chunks& c : pieces) b.send(at(place + mask), c);
  }
}

void make_all_to_all(Schedule& list, const ScheduleOptions& options) {
  Builder b{list, options.wire};
  const int n = list.num_ranks;
  const int k = options.pipeline;
  list.in_blocks = n;
  list.out_blocks = n;
  list.chunks_per_block = k;
  const Segments share = shares(k);
  b.copy(share(list.rank), in_buffer(BufferName::in, share(list.rank)));
  for (int shift = 1; shift < n; ++shift) {
    const auto out = split(share((list.rank + shift) % n), k);
    const auto in = split(share((list.rank + n - shift) % n), k);
    for (int q = 0; q < k; ++q) {
      b.send((list.rank + shift) % n, in_buffer(BufferName::in, out[q]));
      b.receive((list.rank + n - shift) % n, in[q]);
    }
  }
}

// Dissemination (Hensgen, Finkel and Manber 1988): after round k everyone knows of the 2^(k+1)
// ranks up to itself.
void make_barrier(Schedule& list) {
  Builder b{list};
  const Chunks flag{BufferName::out, 0, 1};
  b.copy(flag, in_buffer(BufferName::in, flag));
  const int n = list.num_ranks;
  for (int d = 1; d < n; d *= 2) {
    b.send((list.rank + d) % n, flag);
    b.receive_reduce((list.rank + n - d) % n, flag, flag);
  }
}

}  // namespace ductile::comm
