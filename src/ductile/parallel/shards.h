#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ductile/optim/optimizer.h"

// Weight-update sharding (Xu et al. 2020, arXiv 2004.13336; Rajbhandari et al. 2020, arXiv
// 1910.02054): each worker keeps and updates the optimiser's state of some blocks of the flat
// buffers only. docs/design/008-sharded-updates.md has the reasons.
namespace ductile::parallel {

using optim::Optimizer;
using BlockRange = Optimizer::BlockRange;

// Who keeps which blocks, by rank.
struct ShardLayout {
  std::vector<BlockRange> own;                // tile all blocks, in order; may be empty ranges
  std::vector<std::vector<BlockRange>> held;  // the own one, and those of the next ranks' copies

  int num_workers() const { return static_cast<int>(own.size()); }
};

// An even spread of `num_blocks` over the workers that host virtual ranks (`cut` as in
// ExchangeLayout; the others hold nothing). Each block is kept by `copies` of them, or by all where
// there are fewer: the owner, and the hosts after it, around the end.
ShardLayout spread_shards(int64_t num_blocks, std::span<const int64_t> cut, int copies);

// Blocks that one worker gives to another.
struct ShardTransfer {
  int from = 0;
  int to = 0;
  BlockRange blocks;
};

// What has to move so that every worker that has have[r] also has want[r], in an order that all
// carry out alike; the load is spread over those who have a block. Throws data_loss where nobody
// has one that is wanted.
std::vector<ShardTransfer> plan_transfers(std::span<const std::vector<BlockRange>> have,
                                          std::span<const std::vector<BlockRange>> want);

}  // namespace ductile::parallel
