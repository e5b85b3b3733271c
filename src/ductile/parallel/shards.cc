#include "ductile/parallel/shards.h"

#include <algorithm>
#include <utility>

#include "ductile/base/error.h"

namespace ductile::parallel {
namespace {

bool contains(const std::vector<BlockRange>& ranges, int64_t block) {
  return std::ranges::any_of(
      ranges, [&](const BlockRange& r) { return r.begin <= block && block < r.end; });
}

// The place nearest to `block` where the blocks may be parted; both ends are such places.
int64_t nearest_cut(int64_t block, int64_t num_blocks,
                    const std::function<bool(int64_t)>& may_cut) {
  const auto allowed = [&](int64_t b) { return b <= 0 || b >= num_blocks || may_cut(b); };
  for (int64_t way = 0;; ++way) {
    if (allowed(block - way)) return std::max<int64_t>(0, block - way);
    if (allowed(block + way)) return std::min(num_blocks, block + way);
  }
}

}  // namespace

ShardLayout spread_shards(int64_t num_blocks, std::span<const int64_t> cut, int copies,
                          const std::function<bool(int64_t)>& may_cut) {
  DUCTILE_CHECK(copies >= 1, "{} copies of a shard", copies);
  ShardLayout layout;
  const size_t num_workers = cut.size() - 1;
  std::vector<size_t> hosts;
  for (size_t r = 0; r < num_workers; ++r) {
    if (cut[r] < cut[r + 1]) hosts.push_back(r);
  }
  DUCTILE_CHECK(!hosts.empty(), "nobody hosts a virtual rank");
  layout.own.assign(num_workers, BlockRange{num_blocks, num_blocks});
  layout.held.resize(num_workers);
  const size_t n = hosts.size();
  const auto count = static_cast<int64_t>(n);
  const auto bound = [&](size_t i) {
    return nearest_cut(num_blocks * static_cast<int64_t>(i) / count, num_blocks, may_cut);
  };
  for (size_t i = 0; i < n; ++i) layout.own[hosts[i]] = {bound(i), bound(i + 1)};
  // Workers without virtual ranks come last (their cut is empty), or their ranges would not tile.
  for (size_t r = 0; r + 1 < num_workers; ++r) {
    DUCTILE_CHECK(layout.own[r].end == layout.own[r + 1].begin,
                  "a worker without virtual ranks is not among the last");
  }
  const size_t kept = std::min(static_cast<size_t>(copies), n);
  layout.whole = kept == n;
  for (size_t i = 0; i < n; ++i) {
    for (size_t c = 0; c < kept; ++c) {
      layout.held[hosts[(i + c) % n]].push_back(layout.own[hosts[i]]);
    }
  }
  for (std::vector<BlockRange>& ranges : layout.held) ranges = Optimizer::merged(std::move(ranges));
  return layout;
}

std::vector<ShardTransfer> plan_transfers(std::span<const std::vector<BlockRange>> have,
                                          std::span<const std::vector<BlockRange>> want) {
  std::vector<ShardTransfer> transfers;
  std::vector<int64_t> load(have.size(), 0);
  for (size_t to = 0; to < want.size(); ++to) {
    std::vector<BlockRange> there = have[to];
    for (const BlockRange& range : want[to]) {
      for (int64_t b = range.begin; b < range.end; ++b) {
        if (contains(there, b)) continue;
        // Whoever gave the block before goes on, so that transfers stay long.
        const bool goes_on = !transfers.empty() && transfers.back().to == static_cast<int>(to) &&
                             transfers.back().blocks.end == b &&
                             contains(have[static_cast<size_t>(transfers.back().from)], b);
        if (goes_on) {
          ++transfers.back().blocks.end;
          ++load[static_cast<size_t>(transfers.back().from)];
          continue;
        }
        size_t from = have.size();
        for (size_t r = 0; r < have.size(); ++r) {
          if (contains(have[r], b) && (from == have.size() || load[r] < load[from])) from = r;
        }
        if (from == have.size()) {
          fail(ErrorCode::data_loss, "no worker holds block {} of the optimiser's state", b);
        }
        ++load[from];
        transfers.push_back({static_cast<int>(from), static_cast<int>(to), {b, b + 1}});
      }
      there.push_back(range);
    }
  }
  return transfers;
}

}  // namespace ductile::parallel
