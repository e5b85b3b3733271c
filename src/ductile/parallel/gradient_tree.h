#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ductile/base/aligned_array.h"
#include "ductile/parallel/float_range.h"

namespace ductile::parallel {

// The canonical sum of the V virtual ranks' vectors: leaves 0 .. V-1 of one fixed balanced binary
// tree, evaluated in that tree's order. The tree over n leaves has the largest power of two below n
// on its left, so every aligned run of 2^k leaves is one subtree. A worker that hosts such a run
// can sum it alone, and the result has the same bits for every spread of virtual ranks over
// workers.
//
// Streaming: leaves are pushed in order, and at most log2(V) + 1 partial sums are held.
//
//   GradientTree tree(size);
//   for (v = 0; v < V; ++v) { fill(tree.leaf()); tree.push(); }
//   std::span<float> sum = tree.finish();   // valid until the next leaf()
class GradientTree {
 public:
  explicit GradientTree(int64_t size);

  // The next sum is made in `out`, which has the size of the vectors, and finish() returns it. A
  // sum that was under way is discarded.
  void sum_into(std::span<float> out);
  // In the sums from the next one on these elements alone are filled and added, in ascending
  // ranges; the others are not touched. In the beginning these are all. Not with finish_part().
  void restrict_to(std::vector<FloatRange> ranges) { ranges_ = std::move(ranges); }
  // Where the next leaf goes; its contents are unspecified.
  std::span<float> leaf();
  // The span that leaf() gave is filled.
  void push();
  // Replaces push() for the last leaf of a sum, so that the sum can be finished part by part:
  // elements begin .. end - 1 of the span that leaf() gave are filled, and finish_part() returns
  // the sum of these elements. Each element is finished once; after all of them, finish() ends the
  // sum.
  std::span<float> finish_part(int64_t begin, int64_t end);
  // The sum of the leaves pushed since the last finish(), of which there is at least one; after
  // finish_part(), the sum of all parts.
  std::span<float> finish();

 private:
  // A vector of the tree's own, or the caller's.
  struct Buffer {
    std::span<float> values;
    bool own = true;
  };
  struct Node {
    Buffer buffer;
    int64_t num_leaves;
  };
  Buffer take();
  void release(Buffer buffer);
  void merge_top();

  int64_t size_;
  std::vector<FloatRange> ranges_;
  std::vector<std::span<float>> free_;
  std::vector<AlignedArray<float>> owned_;
  std::vector<Node> stack_;
  std::optional<Buffer> into_;    // the next leaf 0: the left of every sum is where the sum goes
  std::optional<Buffer> open_;    // handed out by leaf()
  std::optional<Buffer> result_;  // handed out by finish()
};

}  // namespace ductile::parallel
