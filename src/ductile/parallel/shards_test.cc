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

// Where the blocks of workers 0 .. r end, which own them in order.
int64_t end_of(const ShardLayout& layout, size_t r) {
  int64_t end = 0;
  for (size_t i = 0; i <= r; ++i) {
    if (!layout.own[i].empty()) end = layout.own[i].back().end;
  }
  return end;
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
  for (const std::vector<BlockRange>& own : layout.own) {
    if (own.empty()) continue;
    RC_ASSERT(own.size() == 1 && own[0].begin == at);
    at = own[0].end;
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
    if (!layout.own[r].empty()) RC_ASSERT(layout.own[r].front().begin == at);
    at = end_of(layout, r);
    RC_ASSERT(may_cut(at));
    const int64_t even_end = end_of(even, r), way = std::abs(at - even_end);
    for (int64_t b = even_end - way + 1; b < even_end + way; ++b) RC_ASSERT(!may_cut(b));
  }
  RC_ASSERT(at == num_blocks);
}

RC_GTEST_PROP(Shards, BlocksAreKeptByThoseWhoReadThemAndAsManyAsAskedFor, ()) {
  const int64_t num_blocks = *rc::gen::inRange<int64_t>(1, 30);
  const int hosts = *rc::gen::inRange(1, 6);
  const int idle = *rc::gen::inRange(0, 3);
  const int copies = *rc::gen::inRange(1, 4);
  std::vector<int64_t> cut = {0};
  for (int r = 0; r < hosts; ++r) cut.push_back(cut.back() + *rc::gen::inRange(1, 3));
  const int64_t num_ranks = cut.back();
  cut.insert(cut.end(), static_cast<size_t>(idle), num_ranks);
  std::vector<std::vector<BlockRange>> read(static_cast<size_t>(num_ranks));
  for (std::vector<BlockRange>& ranges : read) {
    for (int k = *rc::gen::inRange(0, 3); k > 0; --k) {
      const int64_t begin = *rc::gen::inRange<int64_t>(0, num_blocks);
      ranges.push_back({begin, *rc::gen::inRange<int64_t>(begin, num_blocks + 1)});
    }
  }
  std::vector<bool> allowed;
  for (int64_t b = 0; b <= num_blocks; ++b) allowed.push_back(*rc::gen::arbitrary<bool>());
  const auto may_cut = [&](int64_t b) {
    return b == 0 || b == num_blocks || allowed[static_cast<size_t>(b)];
  };
  const ShardLayout layout = keep_where_read(num_blocks, cut, copies, read, may_cut);
  const auto holds = [&](const std::vector<BlockRange>& ranges, int64_t block) {
    return std::ranges::any_of(
        ranges, [&](const BlockRange& r) { return r.begin <= block && block < r.end; });
  };
  for (const auto* const lists : {&layout.own, &layout.held}) {
    for (const std::vector<BlockRange>& ranges : *lists) {
      RC_ASSERT(ranges == Optimizer::merged(ranges));
      for (const BlockRange& r : ranges) RC_ASSERT(may_cut(r.begin) && may_cut(r.end));
    }
  }
  bool whole = true;
  for (int64_t begin = 0, end = 0; begin < num_blocks; begin = end) {  // what goes together
    end = begin + 1;
    while (!may_cut(end)) ++end;
    int readers = 0, owners = 0, keepers = 0;
    for (size_t r = 0; r + 1 < cut.size(); ++r) {
      bool reads = false;
      for (int64_t v = cut[r]; v < cut[r + 1]; ++v) {
        for (int64_t b = begin; b < end; ++b) reads |= holds(read[static_cast<size_t>(v)], b);
      }
      readers += reads;
      owners += holds(layout.own[r], begin);
      keepers += holds(layout.held[r], begin);
      RC_ASSERT(!reads || holds(layout.held[r], begin));
      RC_ASSERT(!holds(layout.own[r], begin) || holds(layout.held[r], begin));
    }
    RC_ASSERT(owners == 1);
    RC_ASSERT(keepers == std::max({readers, std::min(copies, hosts), 1}));
    whole = whole && keepers == hosts;
  }
  RC_ASSERT(layout.whole == whole);
  for (int r = hosts; r < hosts + idle; ++r) RC_ASSERT(layout.held[static_cast<size_t>(r)].empty());
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
