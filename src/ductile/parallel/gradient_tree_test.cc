#include "ductile/parallel/gradient_tree.h"

#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"

namespace ductile::parallel {
namespace {

using Vec = std::vector<float>;

// The definition, recursively: the obvious twin.
Vec tree_sum(const std::vector<Vec>& leaves, size_t first, size_t count) {
  if (count == 1) return leaves[first];
  const size_t left = std::bit_floor(count - 1);
  Vec a = tree_sum(leaves, first, left);
  const Vec b = tree_sum(leaves, first + left, count - left);
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

std::vector<Vec> random_leaves(size_t count, size_t size) {
  Rng rng(count, size);
  std::vector<Vec> leaves(count, Vec(size));
  for (Vec& leaf : leaves) {
    for (float& x : leaf) x = rng.normal() * std::exp2(static_cast<float>(rng.below(20)));
  }
  return leaves;
}

TEST(GradientTree, EqualsTheRecursiveDefinitionBitForBit) {
  for (size_t count = 1; count <= 33; ++count) {
    const auto leaves = random_leaves(count, 257);
    GradientTree tree(257);
    for (int round = 0; round < 2; ++round) {
      for (const Vec& leaf : leaves) {
        std::copy(leaf.begin(), leaf.end(), tree.leaf().begin());
        tree.push();
      }
      const auto sum = tree.finish();
      ASSERT_EQ(Vec(sum.begin(), sum.end()), tree_sum(leaves, 0, count)) << count;
    }
  }
}

// What makes resizing exact: aligned runs summed apart, then combined, give the same bits.
TEST(GradientTree, AlignedSubtreesSummedElsewhereGiveTheSameBits) {
  const auto leaves = random_leaves(16, 64);
  for (size_t run : {1, 2, 4, 8}) {
    GradientTree outer(64);
    for (size_t first = 0; first < 16; first += run) {
      GradientTree inner(64);
      for (size_t i = first; i < first + run; ++i) {
        std::copy(leaves[i].begin(), leaves[i].end(), inner.leaf().begin());
        inner.push();
      }
      const auto part = inner.finish();
      std::copy(part.begin(), part.end(), outer.leaf().begin());
      outer.push();
    }
    const auto sum = outer.finish();
    EXPECT_EQ(Vec(sum.begin(), sum.end()), tree_sum(leaves, 0, 16)) << run;
  }
}

TEST(GradientTree, TheLastLeafMayComeInParts) {
  for (size_t count = 1; count <= 17; ++count) {
    const auto leaves = random_leaves(count, 100);
    GradientTree tree(100);
    for (const bool own : {true, false}) {
      Vec out(100);
      if (!own) tree.sum_into(out);
      for (size_t i = 0; i + 1 < count; ++i) {
        std::copy(leaves[i].begin(), leaves[i].end(), tree.leaf().begin());
        tree.push();
      }
      const std::span<float> last = tree.leaf();
      const Vec expected = tree_sum(leaves, 0, count);
      for (const auto& [begin, end] : {std::pair{63, 100}, {63, 63}, {1, 63}, {0, 1}}) {
        std::copy(leaves.back().begin() + begin, leaves.back().begin() + end, last.begin() + begin);
        const auto part = tree.finish_part(begin, end);
        ASSERT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + begin)) << count;
      }
      const auto sum = tree.finish();
      ASSERT_EQ(Vec(sum.begin(), sum.end()), expected) << count;
    }
  }
}

TEST(GradientTree, SumsStraightIntoTheCallersMemory) {
  for (const size_t count : {1, 2, 5, 8}) {
    const auto leaves = random_leaves(count, 100);
    GradientTree tree(100);
    for (int round = 0; round < 3; ++round) {
      Vec out(100);
      tree.leaf();  // of a sum that is given up
      if (round == 1) tree.push();
      tree.sum_into(out);
      for (const Vec& leaf : leaves) {
        std::copy(leaf.begin(), leaf.end(), tree.leaf().begin());
        tree.push();
      }
      ASSERT_EQ(tree.finish().data(), out.data());
      EXPECT_EQ(out, tree_sum(leaves, 0, count)) << count;
    }
  }
}

}  // namespace
}  // namespace ductile::parallel
