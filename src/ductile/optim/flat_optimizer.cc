#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {

FlatOptimizer::FlatOptimizer(const ParamLayout& layout, int sums_a_piece)
    : Optimizer(layout), sums_a_piece_(sums_a_piece) {
  first_piece_.push_back(0);
  const auto reach_block = [&](int64_t block) {
    while (static_cast<int64_t>(first_piece_.size()) <= block) {
      first_piece_.push_back(pieces_.size());
    }
  };
  const std::vector<Segment>& segments = layout_.segments();
  for (size_t s = 0; s < segments.size(); ++s) {
    const int64_t end = segments[s].offset + segments[s].size;
    for (int64_t begin = segments[s].offset; begin < end;) {
      const int64_t block = begin / kBlock;
      reach_block(block);
      const int64_t stop = std::min(end, (block + 1) * kBlock);
      pieces_.push_back({begin, stop - begin, s});
      begin = stop;
    }
  }
  reach_block(num_blocks());
  norm_sums_.resize(pieces_.size() * static_cast<size_t>(sums_a_piece_));
}

std::span<double> FlatOptimizer::norm_sums_of(BlockRange blocks) {
  const size_t width = static_cast<size_t>(sums_a_piece_);
  const size_t begin = first_piece_.at(static_cast<size_t>(blocks.begin)) * width;
  const size_t end = first_piece_.at(static_cast<size_t>(blocks.end)) * width;
  return std::span(norm_sums_).subspan(begin, end - begin);
}

std::vector<double> FlatOptimizer::segment_sums(int which) const {
  std::vector<double> sums(layout_.segments().size(), 0.0);
  for (size_t p = 0; p < pieces_.size(); ++p) {
    sums[pieces_[p].segment] +=
        norm_sums_[p * static_cast<size_t>(sums_a_piece_) + static_cast<size_t>(which)];
  }
  return sums;
}

}  // namespace ductile::optim
