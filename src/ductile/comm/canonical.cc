#include "ductile/comm/canonical.h"

#include <bit>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

void cover_node(const LeafRange& node, const LeafRange& range, std::vector<LeafRange>& out) {
  if (range.end <= node.begin || node.end <= range.begin) return;
  if (range.begin <= node.begin && node.end <= range.end) {
    out.push_back(node);
    return;
  }
  const int64_t middle = node.begin + left_leaves(node.size());
  cover_node({node.begin, middle}, range, out);
  cover_node({middle, node.end}, range, out);
}

class Combiner {
 public:
  Combiner(std::span<const LeafRange> pieces) : pieces_(pieces) {}

  // The index of the piece that holds the sum of `node` once the additions so far are done.
  int visit(const LeafRange& node) {
    if (next_ < pieces_.size() && pieces_[next_] == node) return static_cast<int>(next_++);
    if (node.size() < 2 || next_ == pieces_.size() || pieces_[next_].begin != node.begin) {
      const LeafRange bad = next_ < pieces_.size() ? pieces_[next_] : LeafRange{};
      fail(ErrorCode::invalid_argument,
           "leaves {}..{} where the tree needs a part of {}..{}: pieces must be nodes that tile "
           "the leaves in order",
           bad.begin, bad.end, node.begin, node.end);
    }
    const int64_t middle = node.begin + left_leaves(node.size());
    const int left = visit({node.begin, middle});
    const int right = visit({middle, node.end});
    order_.push_back({left, right});
    return left;
  }

  std::vector<Combine> take(int64_t num_leaves) {
    visit({0, num_leaves});
    if (next_ != pieces_.size()) {
      fail(ErrorCode::invalid_argument, "{} pieces beyond the {} leaves", pieces_.size() - next_,
           num_leaves);
    }
    return std::move(order_);
  }

 private:
  std::span<const LeafRange> pieces_;
  size_t next_ = 0;
  std::vector<Combine> order_;
};

}  // namespace

int64_t left_leaves(int64_t n) {
  DUCTILE_CHECK(n >= 2, "a node of {} leaves has no children", n);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n - 1)));
}

bool is_node(int64_t num_leaves, const LeafRange& range) {
  return range.size() > 0 && cover(num_leaves, range).size() == 1;
}

std::vector<LeafRange> cover(int64_t num_leaves, const LeafRange& range) {
  if (range.begin < 0 || range.end > num_leaves || range.begin > range.end) {
    fail(ErrorCode::invalid_argument, "leaves {}..{} of a tree of {}", range.begin, range.end,
         num_leaves);
  }
  std::vector<LeafRange> out;
  if (num_leaves > 0) cover_node({0, num_leaves}, range, out);
  return out;
}

std::vector<Combine> combine_order(int64_t num_leaves, std::span<const LeafRange> pieces) {
  if (num_leaves < 1) fail(ErrorCode::invalid_argument, "a tree of {} leaves", num_leaves);
  return Combiner(pieces).take(num_leaves);
}

}  // namespace ductile::comm
