#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace ductile::parallel {

// The sum of tensors in the order of the canonical tree, as GradientTree sums the vectors of
// virtual ranks: leaves are pushed in order, and at most log2 of their number, plus one, partial
// sums are held. One thread at a time.
class TensorTree {
 public:
  // Takes over the leaf: nobody else may hold its memory. All leaves have one shape and one type.
  void push(at::Tensor leaf) {
    const at::NoGradGuard no_grad;
    stack_.push_back({std::move(leaf), 1});
    while (stack_.size() >= 2 && stack_[stack_.size() - 2].num_leaves == stack_.back().num_leaves) {
      Node& left = stack_[stack_.size() - 2];
      left.sum.add_(stack_.back().sum);
      left.num_leaves *= 2;
      stack_.pop_back();
    }
  }

  int64_t num_leaves() const {
    int64_t sum = 0;
    for (const Node& node : stack_) sum += node.num_leaves;
    return sum;
  }

  // Of the leaves so far; undefined if there is none. It holds until the next push().
  at::Tensor sum() const {
    const at::NoGradGuard no_grad;
    at::Tensor out;
    for (auto node = stack_.rbegin(); node != stack_.rend(); ++node) {
      out = out.defined() ? node->sum.add(out) : node->sum;
    }
    return out;
  }

 private:
  struct Node {
    at::Tensor sum;
    int64_t num_leaves;
  };
  std::vector<Node> stack_;
};

}  // namespace ductile::parallel
