#include <algorithm>
#include <cmath>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/pages.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {

FlatOptimizer::FlatOptimizer(const ParamLayout& layout, int sums_a_piece,
                             std::vector<std::string> state_names)
    : Optimizer(layout), state_names_(std::move(state_names)), sums_a_piece_(sums_a_piece) {
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
  hold({{0, num_blocks()}});
}

void FlatOptimizer::refuse_frozen(std::string_view rule) const {
  for (const Segment& segment : layout_.segments()) {
    if (std::isinf(segment.trained_epochs)) continue;
    fail(ErrorCode::invalid_argument,
         "parameter '{}' is frozen (by the model, or by optimizer.freeze), and optimizer.name = "
         "\"{}\" evaluates weights that it computes for all parameters; use another rule",
         segment.name, rule);
  }
}

void FlatOptimizer::hold(std::vector<BlockRange> ranges) {
  ranges = merged(std::move(ranges));
  if (ranges == held_) return;
  DUCTILE_CHECK(ranges.empty() || (ranges.front().begin >= 0 && ranges.back().end <= num_blocks()),
                "blocks {} to {} of {}", ranges.front().begin, ranges.back().end, num_blocks());
  const std::vector<Chunk> before = std::exchange(chunks_, {});
  for (const BlockRange& r : ranges) {
    Chunk chunk{first_float(r), num_floats(r), {}};
    // It takes memory when it is written: a worker begins with the state of all blocks, and may be
    // told to hold a few of them before the first step.
    chunk.values = untouched_zeros<float>(chunk.size * static_cast<int64_t>(state_names_.size()));
    for (const Chunk& old : before) {
      const int64_t begin = std::max(chunk.begin, old.begin);
      const int64_t size = std::min(chunk.begin + chunk.size, old.begin + old.size) - begin;
      for (size_t s = 0; size > 0 && s < state_names_.size(); ++s) {
        const auto which = static_cast<int64_t>(s);
        std::copy_n(old.values.data() + which * old.size + (begin - old.begin), size,
                    chunk.values.data() + which * chunk.size + (begin - chunk.begin));
      }
    }
    chunks_.push_back(std::move(chunk));
  }
  held_ = std::move(ranges);
}

FlatOptimizer::Chunk& FlatOptimizer::chunk_of(int64_t begin, int64_t size) {
  for (Chunk& c : chunks_) {
    if (begin >= c.begin && begin + size <= c.begin + c.size) return c;
  }
  fail(ErrorCode::internal, "the state of the floats {} to {} is not held", begin, begin + size);
}

float* FlatOptimizer::state_at(size_t which, int64_t begin) {
  Chunk& c = chunk_of(begin, 1);
  return c.values.data() + static_cast<int64_t>(which) * c.size + (begin - c.begin);
}

std::vector<Optimizer::StateBuffer> FlatOptimizer::state(BlockRange blocks) {
  std::vector<StateBuffer> buffers;
  const int64_t begin = first_float(blocks), size = num_floats(blocks);
  for (size_t s = 0; s < state_names_.size(); ++s) {
    if (size <= 0) {
      buffers.push_back({state_names_[s], {}});
      continue;
    }
    Chunk& c = chunk_of(begin, size);
    float* const at = c.values.data() + static_cast<int64_t>(s) * c.size + (begin - c.begin);
    buffers.push_back({state_names_[s], {at, static_cast<size_t>(size)}});
  }
  return buffers;
}

size_t FlatOptimizer::state_bytes() const {
  size_t bytes = 0;
  for (const Chunk& c : chunks_) bytes += c.values.span().size_bytes();
  return bytes;
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

double FlatOptimizer::total_sum(int which) const {
  const auto width = static_cast<size_t>(sums_a_piece_);
  double sum = 0;
  for (size_t p = 0; p < pieces_.size(); ++p) {
    sum += norm_sums_[p * width + static_cast<size_t>(which)];
  }
  return sum;
}

}  // namespace ductile::optim
