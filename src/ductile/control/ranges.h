#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ductile::control {

// A contiguous run of virtual ranks: begin .. end - 1.
struct RankRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const RankRange&) const = default;
};

// The number of subtrees of the canonical reduction tree over `virtual_ranks` leaves
// (parallel/gradient_tree.h) that cover `range`. The host of the range sums these alone, and then
// has to exchange them.
int64_t num_subtrees(RankRange range, int64_t virtual_ranks);

// Spreads virtual_ranks over num_workers contiguous ranges, in order, whose sizes differ by at most
// one. Among these spreads it chooses one with the fewest subtrees in total, and among equals the
// one whose larger ranges come first. Throws invalid_argument unless 1 <= num_workers <=
// virtual_ranks.
std::vector<RankRange> spread_ranks(int64_t virtual_ranks, int64_t num_workers);

// Which of as many workers, on these hosts, gets which of the ranges: the worker's number for each
// range. `rank_hosts` says on which host each virtual rank is wanted ("": on any). A range is
// wanted where most of its ranks are, of equally many the host of the first. As many ranges as can
// be are where they are wanted; workers of one host keep their order, and so do those that are
// wanted nowhere.
std::vector<size_t> seat_workers(std::span<const RankRange> ranges,
                                 std::span<const std::string> rank_hosts,
                                 std::span<const std::string> worker_hosts);

}  // namespace ductile::control
