#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ductile::comm {

// The arithmetic of the canonical sum: which parts of the one fixed binary tree over V leaves a
// worker can sum alone, and in which order the parts of all workers are put together. The tree over
// n leaves has the largest power of two below n on its left; a tree of one leaf is that leaf. The
// sum of a node is (sum of its left) + (sum of its right): one value, bit for bit, whoever computes
// which part.

// The leaves begin .. end - 1 of one node.
struct LeafRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const LeafRange&, const LeafRange&) = default;
};

// How many of the n >= 2 leaves of a node lie on its left.
int64_t left_leaves(int64_t n);

// Whether `range` is a node of the tree over `num_leaves`.
bool is_node(int64_t num_leaves, const LeafRange& range);

// The fewest nodes that tile `range`, in leaf order: these are the sums that the owner of those
// leaves can make without the others. There are at most 2 log2(num_leaves) of them, and none for an
// empty range.
std::vector<LeafRange> cover(int64_t num_leaves, const LeafRange& range);

// One addition: value[left] += value[right].
struct Combine {
  int left = 0;
  int right = 0;
};

// The additions, in order, that turn the values of `pieces` into the sum of the whole tree, which
// then is value 0. The pieces are nodes that tile 0 .. num_leaves - 1 in order (the covers of all
// workers, one after the other); throws invalid_argument if they do not.
std::vector<Combine> combine_order(int64_t num_leaves, std::span<const LeafRange> pieces);

}  // namespace ductile::comm
