#pragma once

#include <cstdint>
#include <vector>

namespace ductile::control {

// A contiguous run of virtual ranks: begin .. end - 1.
struct RankRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const RankRange&) const = default;
};

// Subtrees of the canonical reduction tree over `virtual_ranks` leaves (parallel/gradient_tree.h)
// that are needed to cover `range`: what its host sums alone, and then has to exchange.
int64_t num_subtrees(RankRange range, int64_t virtual_ranks);

// Spreads virtual_ranks over num_workers contiguous ranges, in order, whose sizes differ by at most
// one; among those spreads one with the fewest subtrees in all, the larger ranges first where
// equal. Throws invalid_argument unless 1 <= num_workers <= virtual_ranks.
std::vector<RankRange> spread_ranks(int64_t virtual_ranks, int64_t num_workers);

}  // namespace ductile::control
