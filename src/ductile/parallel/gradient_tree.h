#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace ductile::parallel {

// The canonical sum of the V virtual ranks' vectors: leaves 0 .. V-1 of one fixed balanced binary
// tree, evaluated in that tree's order. The tree over n leaves has the largest power of two below n
// on its left, so every aligned run of 2^k leaves is one subtree: whoever hosts such a run can sum
// it alone, and the result has the same bits for every spread of virtual ranks over workers.
//
// Streaming: leaves are pushed in order, and at most log2(V) + 1 partial sums are held.
//
//   GradientTree tree(size);
//   for (v = 0; v < V; ++v) { fill(tree.leaf()); tree.push(); }
//   std::span<float> sum = tree.finish();   // valid until the next leaf()
class GradientTree {
 public:
  explicit GradientTree(int64_t size);

  // Where the next leaf goes; its contents are unspecified.
  std::span<float> leaf();
  // The span that leaf() gave is filled.
  void push();
  // The sum of the leaves pushed since the last finish(); at least one.
  std::span<float> finish();
  // Forgets the leaves pushed since the last finish().
  void clear();

 private:
  struct Node {
    std::vector<float>* values;
    int64_t num_leaves;
  };
  std::vector<float>* take();
  void merge_top();

  int64_t size_;
  std::vector<std::vector<float>*> free_;
  std::vector<std::unique_ptr<std::vector<float>>> owned_;
  std::vector<Node> stack_;
  std::vector<float>* open_ = nullptr;    // handed out by leaf()
  std::vector<float>* result_ = nullptr;  // handed out by finish()
};

}  // namespace ductile::parallel
