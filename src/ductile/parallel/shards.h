#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "ductile/optim/optimizer.h"

// Which worker keeps which parts of the state. With weight-update sharding (Xu et al. 2020, arXiv
// 2004.13336; Rajbhandari et al. 2020, arXiv 1910.02054) each worker keeps and updates the
// optimiser's state for only some blocks of the flat buffers; without it every worker keeps all
// blocks. docs/design/008-sharded-updates.md has the reasons.
namespace ductile::parallel {

using optim::Optimizer;
using BlockRange = Optimizer::BlockRange;

// As many copies of each block as there are workers.
constexpr int kEverywhere = std::numeric_limits<int>::max();

// Who keeps which blocks, by rank.
struct ShardLayout {
  // Each block is owned by one worker, and kept by it and others. Ascending, not touching.
  std::vector<std::vector<BlockRange>> own, held;
  // Every worker that hosts virtual ranks keeps all blocks, so none of them has to ask another one.
  bool whole = false;

  int num_workers() const { return static_cast<int>(own.size()); }
};

// Spreads `num_blocks` evenly over the workers that host virtual ranks (`cut` is as in
// ExchangeLayout); other workers hold nothing. Each block is kept by `copies` of these workers, or
// by all of them if there are fewer: its owner, and the workers after it, cyclically. Blocks are
// parted only before a block for which may_cut(block) is true, as near to an even spread as that
// allows.
ShardLayout spread_shards(
    int64_t num_blocks, std::span<const int64_t> cut, int copies,
    const std::function<bool(int64_t block)>& may_cut = [](int64_t) { return true; });

// Keeps the blocks where they are read: read[v] are those that hold parameters of virtual rank v,
// where it is a stage of the model. Each worker keeps what its virtual ranks read, and each block
// is kept by `copies` workers at least, or by all that host virtual ranks: its owner, who is the
// first of those that read it, and the workers after that. Blocks that nobody reads are spread
// evenly. `cut` and may_cut() as above.
ShardLayout keep_where_read(
    int64_t num_blocks, std::span<const int64_t> cut, int copies,
    std::span<const std::vector<BlockRange>> read,
    const std::function<bool(int64_t block)>& may_cut = [](int64_t) { return true; });

// Blocks that one worker gives to another.
struct ShardTransfer {
  int from = 0;
  int to = 0;
  BlockRange blocks;
};

// The transfers after which every worker r, which has have[r], also has want[r]. All workers carry
// them out in this order. The load is spread over the workers that have a block. Throws data_loss
// if nobody has a block that is wanted.
std::vector<ShardTransfer> plan_transfers(std::span<const std::vector<BlockRange>> have,
                                          std::span<const std::vector<BlockRange>> want);

}  // namespace ductile::parallel
