#include "ductile/parallel/gradient_tree.h"

#include <utility>

#include "ductile/base/error.h"
#include "ductile/optim/elementwise.h"

namespace ductile::parallel {

GradientTree::GradientTree(int64_t size) : size_(size) {}

std::vector<float>* GradientTree::take() {
  if (free_.empty()) {
    owned_.push_back(std::make_unique<std::vector<float>>(size_));
    return owned_.back().get();
  }
  std::vector<float>* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

std::span<float> GradientTree::leaf() {
  if (result_ != nullptr) free_.push_back(std::exchange(result_, nullptr));
  if (open_ == nullptr) open_ = take();
  return *open_;
}

void GradientTree::push() {
  DUCTILE_CHECK(open_ != nullptr, "push() without leaf()");
  stack_.push_back({std::exchange(open_, nullptr), 1});
  while (stack_.size() >= 2 && stack_[stack_.size() - 2].num_leaves == stack_.back().num_leaves) {
    merge_top();
  }
}

void GradientTree::merge_top() {
  const Node right = stack_.back();
  stack_.pop_back();
  optim::add_into(*stack_.back().values, *right.values);
  stack_.back().num_leaves += right.num_leaves;
  free_.push_back(right.values);
}

std::span<float> GradientTree::finish() {
  DUCTILE_CHECK(!stack_.empty(), "finish() without leaves");
  while (stack_.size() > 1) merge_top();
  result_ = stack_.back().values;
  stack_.clear();
  return *result_;
}

void GradientTree::clear() {
  for (const Node& node : stack_) free_.push_back(node.values);
  stack_.clear();
}

}  // namespace ductile::parallel
