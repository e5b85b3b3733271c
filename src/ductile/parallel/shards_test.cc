#include "ductile/parallel/shards.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"

namespace ductile::parallel {
namespace {

int64_t size_of(const std::vector<BlockRange>& ranges) {
  int64_t size = 0;
  for (const BlockRange& r : ranges) size += r.end - r.begin;
  return size;
}

RC_GTEST_PROP(Shards, EveryBlockIsKeptByAsManyAsAskedFor, ()) {
  const int64_t num_blocks = *rc::gen::inRange<int64_t>(0, 40);
  const int hosts = *rc::gen::inRange(1, 9);
  const int idle = *rc::gen::inRange(0, 3);
  const int copies = *rc::gen::inRange(1, 4);
  std::vector<int64_t> cut;
  for (int r = 0; r <= hosts; ++r) cut.push_back(r);
  cut.insert(cut.end(), static_cast<size_t>(idle), hosts);
  const ShardLayout layout = spread_shards(num_blocks, cut, copies);
  RC_ASSERT(layout.num_workers() == hosts + idle);
  int64_t at = 0;
  for (const BlockRange& own : layout.own) {
    RC_ASSERT(own.begin == at);
    at = own.end;
  }
  RC_ASSERT(at == num_blocks);
  const int kept = std::min(copies, hosts);
  std::vector<int> holders(static_cast<size_t>(num_blocks), 0);
  for (size_t r = 0; r < layout.held.size(); ++r) {
    RC_ASSERT(size_of(layout.held[r]) <= kept * ((num_blocks + hosts - 1) / hosts));
    if (r >= static_cast<size_t>(hosts)) RC_ASSERT(layout.held[r].empty());
    for (const BlockRange& range : layout.held[r]) {
      for (int64_t b = range.begin; b < range.end; ++b) ++holders[static_cast<size_t>(b)];
    }
  }
  RC_ASSERT(holders == std::vector<int>(static_cast<size_t>(num_blocks), kept));
}

RC_GTEST_PROP(Shards, BlocksArePartedOnlyWhereTheyMayBeAndNearTheEvenSpread, ()) {
  const int64_t num_blocks = *rc::gen::inRange<int64_t>(0, 40);
  const int hosts = *rc::gen::inRange(1, 9);
  std::vector<int64_t> cut;
  for (int r = 0; r <= hosts; ++r) cut.push_back(r);
  std::vector<bool> allowed;
  for (int64_t b = 0; b < num_blocks; ++b) allowed.push_back(*rc::gen::arbitrary<bool>());
  const auto may_cut = [&](int64_t block) {
    return block <= 0 || block >= num_blocks || allowed[static_cast<size_t>(block)];
  };
  const ShardLayout layout = spread_shards(num_blocks, cut, 2, may_cut);
  const ShardLayout even = spread_shards(num_blocks, cut, 2);
  int64_t at = 0;
  for (size_t r = 0; r < layout.own.size(); ++r) {
    RC_ASSERT(layout.own[r].begin == at);
    at = layout.own[r].end;
    RC_ASSERT(may_cut(at));
    const int64_t way = std::abs(at - even.own[r].end);
    for (int64_t b = even.own[r].end - way + 1; b < even.own[r].end + way; ++b) {
      RC_ASSERT(!may_cut(b));
    }
  }
  RC_ASSERT(at == num_blocks);
}

// The obvious twin: sets of blocks.
RC_GTEST_PROP(Shards, TransfersBringWhatIsMissingFromWhoHasIt, ()) {
  const int64_t num_blocks = *rc::gen::inRange<int64_t>(1, 30);
  const auto draw = [&] {
    std::vector<std::vector<BlockRange>> all;
    for (int r = 0; r < 4; ++r) {
      std::vector<BlockRange>& ranges = all.emplace_back();
      for (int k = *rc::gen::inRange(0, 3); k > 0; --k) {
        const int64_t begin = *rc::gen::inRange<int64_t>(0, num_blocks);
        ranges.push_back({begin, *rc::gen::inRange<int64_t>(begin, num_blocks + 1)});
      }
    }
    return all;
  };
  const auto have = draw(), want = draw();
  std::vector<std::vector<int>> blocks(4, std::vector<int>(static_cast<size_t>(num_blocks), 0));
  const auto mark = [&](size_t r, const std::vector<BlockRange>& ranges) {
    for (const BlockRange& range : ranges) {
      for (int64_t b = range.begin; b < range.end; ++b) blocks[r][static_cast<size_t>(b)] = 1;
    }
  };
  for (size_t r = 0; r < 4; ++r) mark(r, have[r]);
  const auto before = blocks;
  bool possible = true;
  for (const auto& ranges : want) {
    for (const BlockRange& range : ranges) {
      for (int64_t b = range.begin; b < range.end; ++b) {
        const auto i = static_cast<size_t>(b);
        possible &= before[0][i] + before[1][i] + before[2][i] + before[3][i] > 0;
      }
    }
  }
  if (!possible) {
    RC_ASSERT_THROWS_AS((void)plan_transfers(have, want), Error);
    return;
  }
  for (const ShardTransfer& t : plan_transfers(have, want)) {
    for (int64_t b = t.blocks.begin; b < t.blocks.end; ++b) {
      const auto i = static_cast<size_t>(b);
      RC_ASSERT(before[static_cast<size_t>(t.from)][i] == 1);
      RC_ASSERT(blocks[static_cast<size_t>(t.to)][i] == 0);
      blocks[static_cast<size_t>(t.to)][i] = 1;
    }
  }
  for (size_t r = 0; r < 4; ++r) {
    for (const BlockRange& range : want[r]) {
      for (int64_t b = range.begin; b < range.end; ++b) {
        RC_ASSERT(blocks[r][static_cast<size_t>(b)] == 1);
      }
    }
  }
}

}  // namespace
}  // namespace ductile::parallel
