#include "ductile/comm/canonical.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/comm/testing/even_cut.h"

namespace ductile::comm {
namespace {

// The slow twin: the tree summed by definition.
float tree_sum(const std::vector<float>& leaves, int64_t begin, int64_t end) {
  if (end - begin == 1) return leaves[begin];
  int64_t left = 1;
  while (2 * left < end - begin) left *= 2;
  return tree_sum(leaves, begin, begin + left) + tree_sum(leaves, begin + left, end);
}

TEST(Canonical, AnyCutGivesTheBitsOfTheWholeTree) {
  Rng rng(1);
  for (int64_t n = 1; n <= 130; ++n) {
    std::vector<float> leaves(n);
    for (float& x : leaves) x = rng.normal() * std::pow(10.0f, rng.normal());
    const float whole = tree_sum(leaves, 0, n);
    for (int tries = 0; tries < 20; ++tries) {
      std::vector<int64_t> cut = {0, n};
      for (uint32_t i = rng.below(10); i > 0; --i) cut.push_back(rng.below(n + 1));
      std::sort(cut.begin(), cut.end());
      std::vector<LeafRange> pieces;
      for (size_t w = 0; w + 1 < cut.size(); ++w) {
        const auto own = cover(n, {cut[w], cut[w + 1]});
        for (const auto& piece : own) ASSERT_TRUE(is_node(n, piece));
        for (size_t i = 0; i + 1 < own.size(); ++i) {  // maximal: no two could be one
          ASSERT_FALSE(is_node(n, {own[i].begin, own[i + 1].end}));
        }
        pieces.insert(pieces.end(), own.begin(), own.end());
      }
      std::vector<float> values;
      for (const auto& p : pieces) values.push_back(tree_sum(leaves, p.begin, p.end));
      for (const auto& [left, right] : combine_order(n, pieces)) values[left] += values[right];
      ASSERT_EQ(values[0], whole);
    }
  }
}

TEST(Canonical, AlignedRangesAreOnePieceEach) {
  for (int workers : {1, 2, 4, 8, 16}) {
    const auto cut = even_cut(64, workers);
    for (int w = 0; w < workers; ++w) EXPECT_EQ(cover(64, {cut[w], cut[w + 1]}).size(), 1u);
  }
  EXPECT_EQ(even_cut(8, 3), (std::vector<int64_t>{0, 3, 6, 8}));
  EXPECT_EQ(cover(8, {3, 6}), (std::vector<LeafRange>{{3, 4}, {4, 6}}));
  EXPECT_TRUE(cover(8, {3, 3}).empty());
}

TEST(Canonical, PiecesThatDoNotTileTheLeavesAreRefused) {
  const auto refuse = [](std::vector<LeafRange> pieces) {
    EXPECT_THROW(combine_order(8, pieces), Error);
  };
  refuse({});
  refuse({{0, 4}});
  refuse({{0, 3}, {3, 8}});
  refuse({{0, 8}, {0, 8}});
  refuse({{4, 8}, {0, 4}});
  EXPECT_THROW(cover(8, {3, 9}), Error);
}

}  // namespace
}  // namespace ductile::comm
