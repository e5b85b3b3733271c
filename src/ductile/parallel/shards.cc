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

// The workers that host virtual ranks.
std::vector<size_t> hosts_of(std::span<const int64_t> cut) {
  std::vector<size_t> hosts;
  for (size_t r = 0; r + 1 < cut.size(); ++r) {
    if (cut[r] < cut[r + 1]) hosts.push_back(r);
  }
  DUCTILE_CHECK(!hosts.empty(), "nobody hosts a virtual rank");
  return hosts;
}

void merge(ShardLayout& layout) {
  for (auto* const lists : {&layout.own, &layout.held}) {
    for (std::vector<BlockRange>& ranges : *lists) ranges = Optimizer::merged(std::move(ranges));
  }
}

}  // namespace

ShardLayout spread_shards(int64_t num_blocks, std::span<const int64_t> cut, int copies,
                          const std::function<bool(int64_t)>& may_cut) {
  DUCTILE_CHECK(copies >= 1, "{} copies of a shard", copies);
  const std::vector<size_t> hosts = hosts_of(cut);
  ShardLayout layout;
  layout.own.resize(cut.size() - 1);
  layout.held.resize(cut.size() - 1);
  const size_t n = hosts.size();
  const auto count = static_cast<int64_t>(n);
  const auto bound = [&](size_t i) {
    return nearest_cut(num_blocks * static_cast<int64_t>(i) / count, num_blocks, may_cut);
  };
  const size_t kept = std::min(static_cast<size_t>(copies), n);
  layout.whole = kept == n;
  for (size_t i = 0; i < n; ++i) {
    const BlockRange own{bound(i), bound(i + 1)};
    layout.own[hosts[i]] = {own};
    for (size_t c = 0; c < kept; ++c) layout.held[hosts[(i + c) % n]].push_back(own);
  }
  merge(layout);
  return layout;
}

ShardLayout keep_where_read(int64_t num_blocks, std::span<const int64_t> cut, int copies,
                            std::span<const std::vector<BlockRange>> read,
                            const std::function<bool(int64_t)>& may_cut) {
  DUCTILE_CHECK(copies >= 1 && static_cast<int64_t>(read.size()) == cut.back(),
                "{} copies of what {} of {} virtual ranks read", copies, read.size(), cut.back());
  const std::vector<size_t> hosts = hosts_of(cut);
  const size_t n = hosts.size();
  std::vector<std::vector<bool>> reads(n, std::vector<bool>(static_cast<size_t>(num_blocks)));
  for (size_t i = 0; i < n; ++i) {
    for (int64_t v = cut[hosts[i]]; v < cut[hosts[i] + 1]; ++v) {
      for (const BlockRange& range : read[static_cast<size_t>(v)]) {
        for (int64_t b = range.begin; b < range.end; ++b) reads[i][static_cast<size_t>(b)] = true;
      }
    }
  }
  ShardLayout layout;
  layout.own.resize(cut.size() - 1);
  layout.held.resize(cut.size() - 1);
  // Blocks that may not be parted go together.
  for (int64_t begin = 0, end = 0; begin < num_blocks; begin = end) {
    end = begin + 1;
    while (end < num_blocks && !may_cut(end)) ++end;
    std::vector<size_t> keepers;
    for (size_t i = 0; i < n; ++i) {
      bool keeps = false;
      for (int64_t b = begin; b < end; ++b) keeps = keeps || reads[i][static_cast<size_t>(b)];
      if (keeps) keepers.push_back(i);
    }
    if (keepers.empty())
      keepers = {static_cast<size_t>(begin) * n / static_cast<size_t>(num_blocks)};
    const size_t owner = keepers.front();
    for (size_t c = 1; c < n && std::ssize(keepers) < copies; ++c) {
      const size_t next = (owner + c) % n;
      if (std::ranges::find(keepers, next) == keepers.end()) keepers.push_back(next);
    }
    layout.own[hosts[owner]].push_back({begin, end});
    for (const size_t i : keepers) layout.held[hosts[i]].push_back({begin, end});
  }
  merge(layout);
  const std::vector<BlockRange> all = Optimizer::merged({{0, num_blocks}});
  layout.whole = std::ranges::all_of(hosts, [&](size_t host) { return layout.held[host] == all; });
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
