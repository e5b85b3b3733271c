#include "ductile/parallel/gradient_tree.h"

#include <utility>

#include "ductile/base/error.h"
#include "ductile/optim/elementwise.h"

namespace ductile::parallel {

GradientTree::GradientTree(int64_t size) : size_(size), ranges_{{0, size}} {}

GradientTree::Buffer GradientTree::take() {
  if (into_) return *std::exchange(into_, std::nullopt);
  if (free_.empty()) {
    owned_.push_back(AlignedArray<float>::uninitialized(size_));
    return {owned_.back().span()};
  }
  const std::span<float> values = free_.back();
  free_.pop_back();
  return {values};
}

void GradientTree::release(Buffer buffer) {
  if (buffer.own) free_.push_back(buffer.values);
}

void GradientTree::sum_into(std::span<float> out) {
  for (const Node& node : stack_) release(node.buffer);
  stack_.clear();
  for (std::optional<Buffer>* held : {&open_, &result_}) {
    if (*held) release(*std::exchange(*held, std::nullopt));
  }
  DUCTILE_CHECK(static_cast<int64_t>(out.size()) == size_, "a sum of {} into {} values", size_,
                out.size());
  into_ = Buffer{out, false};
}

std::span<float> GradientTree::leaf() {
  if (result_) release(*std::exchange(result_, std::nullopt));
  if (!open_) open_ = take();
  return open_->values;
}

void GradientTree::push() {
  DUCTILE_CHECK(open_.has_value(), "push() without leaf()");
  stack_.push_back({*std::exchange(open_, std::nullopt), 1});
  while (stack_.size() >= 2 && stack_[stack_.size() - 2].num_leaves == stack_.back().num_leaves) {
    merge_top();
  }
}

void GradientTree::merge_top() {
  const Node right = stack_.back();
  stack_.pop_back();
  for (const FloatRange& range : ranges_) {
    const auto begin = static_cast<size_t>(range.begin);
    const auto size = static_cast<size_t>(range.end - range.begin);
    optim::add_into(stack_.back().buffer.values.subspan(begin, size),
                    right.buffer.values.subspan(begin, size));
  }
  stack_.back().num_leaves += right.num_leaves;
  release(right.buffer);
}

// The additions that push() and finish() would make of this leaf, in their order.
std::span<float> GradientTree::finish_part(int64_t begin, int64_t end) {
  DUCTILE_CHECK(open_.has_value(), "finish_part() without leaf()");
  const auto part = [&](const Buffer& buffer) {
    return buffer.values.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  };
  std::span<float> sum = part(*open_);
  for (size_t i = stack_.size(); i > 0; --i) {
    const std::span<float> left = part(stack_[i - 1].buffer);
    optim::add_into(left, sum);
    sum = left;
  }
  return sum;
}

std::span<float> GradientTree::finish() {
  if (open_) {  // summed part by part
    stack_.push_back({*std::exchange(open_, std::nullopt), 1});
    while (stack_.size() > 1) {
      release(stack_.back().buffer);
      stack_.pop_back();
    }
  }
  DUCTILE_CHECK(!stack_.empty(), "finish() without leaves");
  while (stack_.size() > 1) merge_top();
  result_ = stack_.back().buffer;
  stack_.clear();
  return result_->values;
}

}  // namespace ductile::parallel
