// Algorithms that follow the shape of the machine: torus and hierarchy; and the canonical sum.
#include <algorithm>
#include <cmath>
#include <map>

#include "ductile/base/error.h"
#include "ductile/comm/canonical.h"
#include "ductile/comm/schedule_impl.h"

namespace ductile::comm {
namespace {

void fall_back_to_ring(Schedule& list, const ScheduleOptions& options, std::string why) {
  list.algorithm = Algorithm::ring;
  list.note = std::move(why);
  ring_all_reduce(list, options);
}

// Reduce-scatter over the inner group, all-reduce over the outer, all-gather over the inner. The
// chunks base .. base + inner.size() * outer.size() - 1 of `out`.
struct TwoLevels {
  RankGroup inner;
  RankGroup outer;
  int inner_rail = 0;
  int outer_rail = 0;
  int base = 0;

  Chunks inner_segment(int i) const {
    return {BufferName::out, base + i * outer.size(), outer.size()};
  }
  Chunks outer_segment(int j) const {
    return {BufferName::out, base + inner.index * outer.size() + j, 1};
  }
};

void ring_two_levels(Builder& b, const TwoLevels& flow, bool reversed) {
  const auto inner = [&](int i) { return flow.inner_segment(i); };
  const auto outer = [&](int j) { return flow.outer_segment(j); };
  ring_reduce_scatter(b, flow.inner, inner, BufferName::in, BufferName::out, 1, flow.inner_rail,
                      reversed);
  ring_reduce_scatter(b, flow.outer, outer, BufferName::out, BufferName::out, 1, flow.outer_rail,
                      reversed);
  b.round(outer(flow.outer.index));
  ring_all_gather(b, flow.outer, outer, BufferName::out, 1, flow.outer_rail, reversed);
  ring_all_gather(b, flow.inner, inner, BufferName::out, 1, flow.inner_rail, reversed);
}

// Members of the host of each rank, in the order in which hosts first appear.
std::vector<std::vector<int>> hosts_of(const Topology& topology) {
  std::vector<std::vector<int>> hosts;
  std::map<int, size_t> index;
  for (int r = 0; r < topology.num_ranks; ++r) {
    const auto [it, fresh] = index.emplace(topology.host_of(r), hosts.size());
    if (fresh) hosts.emplace_back();
    hosts[it->second].push_back(r);
  }
  return hosts;
}

}  // namespace

// "2D-Torus" of Mikami et al. 2018 (arXiv 1811.05233, section 3), with the halving of the data over
// both orders of the dimensions (Ying et al. 2018, arXiv 1811.06992) taken further: 2 * pipeline
// flows, of which the balanced share goes along rows first, listed one after the other so that
// flows are in different phases at a time and both kinds of link stay busy.
void torus_all_reduce(Schedule& list, const Topology& topology, const ScheduleOptions& options) {
  const int n = list.num_ranks;
  Grid grid = topology.grid;
  std::string note;
  if (grid.num_rows * grid.num_columns != n) {
    if (grid.num_rows != 0 || grid.num_columns != 0) {
      note = fmt::format("{} ranks do not fill a grid of {} x {}; ", n, grid.num_rows,
                         grid.num_columns);
    }
    grid = choose_grid(n);
  }
  if (grid.num_rows < 2 || grid.num_columns < 2) {
    fall_back_to_ring(
        list, options,
        note + fmt::format("{} ranks make no grid with two sides above 1: a ring", n));
    return;
  }
  if (!note.empty()) {
    list.note = note + fmt::format("{} x {} is taken", grid.num_rows, grid.num_columns);
  }

  Builder b{list, options.wire};
  const int num_flows = 2 * options.pipeline;
  const int row_first = std::clamp(
      static_cast<int>(std::lround(balanced_row_share(grid) * num_flows)), 1, num_flows - 1);
  list.chunks_per_block = num_flows * n;
  const int row = list.rank / grid.num_columns;
  const int column = list.rank % grid.num_columns;
  RankGroup along_row{{}, column};
  for (int x = 0; x < grid.num_columns; ++x) {
    along_row.ranks.push_back(row * grid.num_columns + x);
  }
  RankGroup along_column{{}, row};
  for (int y = 0; y < grid.num_rows; ++y) {
    along_column.ranks.push_back(y * grid.num_columns + column);
  }
  const int column_rail = topology.num_rails > 1 ? 1 : 0;
  for (int m = 0; m < num_flows; ++m) {
    const bool by_row = (m + 1) * row_first / num_flows > m * row_first / num_flows;
    const int turn = by_row ? (m + 1) * row_first / num_flows : m - m * row_first / num_flows;
    const bool reversed = topology.both_directions && turn % 2 == 1;
    const TwoLevels flow = by_row ? TwoLevels{along_row, along_column, 0, column_rail, m * n}
                                  : TwoLevels{along_column, along_row, column_rail, 0, m * n};
    ring_two_levels(b, flow, reversed);
  }
}

// Hosts of equal size: reduce-scatter inside, a ring between ranks of equal place, all-gather
// inside. Otherwise the first rank of each host sums for all of it and takes part in the ring.
void hierarchical_all_reduce(Schedule& list, const Topology& topology,
                             const ScheduleOptions& options) {
  const auto hosts = hosts_of(topology);
  const int num_hosts = static_cast<int>(hosts.size());
  const size_t largest = std::max_element(hosts.begin(), hosts.end(), [](auto& a, auto& b) {
                           return a.size() < b.size();
                         })->size();
  if (num_hosts == 1 || largest == 1) {
    fall_back_to_ring(
        list, options,
        num_hosts == 1 ? "all ranks are on one host: a ring" : "each host has one rank: a ring");
    return;
  }
  Builder b{list, options.wire};
  RankGroup inside;
  RankGroup between;
  for (int h = 0; h < num_hosts; ++h) {
    const auto it = std::find(hosts[h].begin(), hosts[h].end(), list.rank);
    if (it == hosts[h].end()) continue;
    inside = {hosts[h], static_cast<int>(it - hosts[h].begin())};
    between.index = h;
  }
  const bool even =
      std::all_of(hosts.begin(), hosts.end(), [&](const auto& h) { return h.size() == largest; });
  for (const auto& host : hosts) between.ranks.push_back(host[even ? inside.index : 0]);

  if (even) {
    list.chunks_per_block = options.pipeline * static_cast<int>(largest) * num_hosts;
    for (int m = 0; m < options.pipeline; ++m) {
      const TwoLevels flow{inside, between, 0, 0, m * static_cast<int>(largest) * num_hosts};
      const auto inner = [&](int i) { return flow.inner_segment(i); };
      const auto outer = [&](int j) { return flow.outer_segment(j); };
      direct_reduce_scatter(b, inside, inner, BufferName::in, BufferName::out, 1, 0);
      ring_reduce_scatter(b, between, outer, BufferName::out, BufferName::out, 1, 0);
      b.round(outer(between.index));
      ring_all_gather(b, between, outer, BufferName::out, 1, 0);
      direct_all_gather(b, inside, inner, BufferName::out, 1, 0);
    }
    return;
  }
  list.chunks_per_block = options.pipeline * num_hosts;
  for (int m = 0; m < options.pipeline; ++m) {
    const Chunks all{BufferName::out, m * num_hosts, num_hosts};
    if (inside.index > 0) {
      b.send(inside.ranks[0], in_buffer(BufferName::in, all));
      b.receive(inside.ranks[0], all);
      continue;
    }
    BufferName have = BufferName::in;
    for (int i = 1; i < inside.size(); ++i) {
      b.receive_reduce(inside.ranks[i], all, in_buffer(have, all));
      have = BufferName::out;
    }
    const auto segment = [&](int h) { return Chunks{BufferName::out, all.begin + h, 1}; };
    ring_reduce_scatter(b, between, segment, have, BufferName::out, 1, 0);
    b.round(segment(between.index));
    ring_all_gather(b, between, segment, BufferName::out, 1, 0);
    for (int i = 1; i < inside.size(); ++i) b.send(inside.ranks[i], all);
  }
}

// Slices of the workers' partial sums are exchanged in full precision whatever the wire format, the
// owner of a slice adds them in the order of the tree, and what it sends to all is rounded once: so
// the result does not depend on who hosts which virtual ranks.
void canonical_all_reduce(Schedule& list, const ScheduleOptions& options) {
  const int n = list.num_ranks;
  const auto& cut = options.cut;
  if (static_cast<int>(cut.size()) != n + 1 || cut.front() != 0 || cut.back() < 1 ||
      !std::is_sorted(cut.begin(), cut.end())) {
    fail(ErrorCode::invalid_argument,
         "the cut of the virtual ranks has {} entries; {} ranks need {} ascending ones from 0 to V",
         cut.size(), n, n + 1);
  }
  const int64_t num_leaves = cut.back();
  std::vector<LeafRange> pieces;
  std::vector<int> first_piece(n + 1, 0);
  for (int r = 0; r < n; ++r) {
    for (const LeafRange& piece : cover(num_leaves, {cut[r], cut[r + 1]})) pieces.push_back(piece);
    first_piece[r + 1] = static_cast<int>(pieces.size());
  }
  const auto num_pieces = [&](int r) { return first_piece[r + 1] - first_piece[r]; };
  const std::vector<Combine> order = combine_order(num_leaves, pieces);

  Builder b{list, options.wire};
  const int k = options.pipeline;
  const int self = list.rank;
  list.in_blocks = num_pieces(self);
  list.chunks_per_block = n * k;
  const int num_foreign = static_cast<int>(pieces.size()) - num_pieces(self);
  list.scratch_chunks = num_foreign * k;
  list.mirror_begin = self * k;
  list.mirror_count = k;

  // Where piece p of chunk q of the own slice lies before anything is added.
  const auto place = [&](int p, int q) -> Chunks {
    if (p >= first_piece[self] && p < first_piece[self + 1]) {
      return {BufferName::in, (p - first_piece[self]) * n * k + self * k + q, 1};
    }
    return {BufferName::scratch, (p < first_piece[self] ? p : p - num_pieces(self)) * k + q, 1};
  };
  for (int q = 0; q < k; ++q) {
    for (int shift = 1; shift < n; ++shift) {
      const int to = (self + shift) % n;
      const int from = (self + n - shift) % n;
      for (int i = 0; i < num_pieces(self); ++i) {
        b.send(to, {BufferName::in, i * n * k + to * k + q, 1});
        list.steps.back().exact = true;
      }
      for (int p = first_piece[from]; p < first_piece[from + 1]; ++p) {
        b.receive(from, place(p, q));
        list.steps.back().exact = true;
      }
    }
    const Chunks own{BufferName::out, self * k + q, 1};
    std::vector<Chunks> at(pieces.size());
    for (size_t p = 0; p < pieces.size(); ++p) at[p] = place(static_cast<int>(p), q);
    for (size_t i = 0; i < order.size(); ++i) {
      const auto [left, right] = order[i];
      Chunks dst = at[left].buffer == BufferName::scratch ? at[left] : at[right];
      if (i + 1 == order.size()) dst = own;
      b.reduce(dst, at[left], at[right]);
      at[left] = dst;
    }
    if (order.empty()) b.copy(own, at[0]);
    b.round(own);
    for (int shift = 1; shift < n; ++shift) {
      const int from = (self + n - shift) % n;
      b.send((self + shift) % n, own);
      b.receive(from, {BufferName::out, from * k + q, 1});
    }
  }
}

}  // namespace ductile::comm
