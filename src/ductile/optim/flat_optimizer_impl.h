#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ductile/base/aligned_array.h"
#include "ductile/optim/kernels_impl.h"
#include "ductile/optim/optimizer.h"
#include "ductile/spec/optimizers.h"

namespace ductile::optim {

// What the rules share: the walk over the flat buffers, and what follows each update.
class FlatOptimizer : public Optimizer {
 public:
  std::span<double> norm_sums_of(BlockRange blocks) override;
  int num_rounds() const override { return sums_a_piece_ > 0 ? 1 : 0; }
  void hold(std::vector<BlockRange> ranges) override;
  const std::vector<BlockRange>& held() const override { return held_; }
  using Optimizer::state;
  std::vector<StateBuffer> state(BlockRange blocks) override;
  std::vector<std::string> state_names() const override { return state_names_; }
  size_t state_bytes() const override;

 protected:
  // Floats updated before the half copy and the average of the same floats: they stay in L1.
  static constexpr int64_t kStrip = 1024;

  // The part of one segment that lies in one block.
  struct Piece {
    int64_t begin;
    int64_t size;
    size_t segment;
  };

  // `sums_a_piece` doubles of norm_sums() belong to each piece.
  FlatOptimizer(const ParamLayout& layout, int sums_a_piece, std::vector<std::string> state_names);

  // The state `which` from the float `begin` of the flat buffers on, to the end of its block at
  // least, which is held.
  float* state_at(size_t which, int64_t begin);

  // For rules whose evaluated weights are made of state that every step has to update. Throws
  // invalid_argument if a parameter is not trained throughout.
  void refuse_frozen(std::string_view rule) const;

  // Whether the step updates the segment.
  bool trained(const StepInput& in, size_t segment) const {
    return in.epoch < layout_.segments()[segment].trained_epochs;
  }

  // Before the update: calls visit(piece, index) for every piece of the blocks that the step
  // updates, spread over the OpenMP team. The sums of other pieces become 0.
  template <class Visit>
  void for_pieces(const StepInput& in, BlockRange blocks, const Visit& visit) {
    for_all_pieces(blocks, [&](const Piece& piece, size_t index) {
      if (trained(in, piece.segment)) return visit(piece, index);
      std::ranges::fill(sums_of(index), 0.0);
    });
  }

  // The same for the update. Other pieces are averaged, and stay as they are.
  template <class Visit>
  void update_pieces(const StepInput& in, BlockRange blocks, const Visit& visit) {
    for_all_pieces(blocks, [&](const Piece& piece, size_t) {
      if (trained(in, piece.segment)) return visit(piece);
      update_strips(in, piece, [](int64_t, int64_t) {});
    });
  }

  // Calls update(begin, size) for each strip of the piece, then writes the half copy and average.
  // What is averaged is the new weights, or what averaged(begin, size) points at.
  template <class Update>
  void update_strips(const StepInput& in, const Piece& piece, const Update& update) const {
    update_strips(in, piece, update, [&](int64_t i, int64_t) { return in.weights.data() + i; });
  }
  template <class Update, class Averaged>
  void update_strips(const StepInput& in, const Piece& piece, const Update& update,
                     const Averaged& averaged) const {
    const int64_t end = piece.begin + piece.size;
    for (int64_t i = piece.begin; i < end; i += kStrip) {
      const int64_t n = std::min(kStrip, end - i);
      update(i, n);
      if (!in.half_weights.empty()) {
        const auto convert = in.half == DType::bf16 ? kernels_.to_bf16 : kernels_.to_f16;
        convert(in.half_weights.data() + i, in.weights.data() + i, n);
      }
      if (in.ema.empty()) continue;
      const float* const from = averaged(i, n);
      if (in.ema_decay == 0) {
        std::copy_n(from, n, in.ema.data() + i);  // the kernel would round
      } else {
        kernels_.ema(in.ema.data() + i, from, n, 1.0F - in.ema_decay);
      }
    }
  }

  // The sums of a piece.
  std::span<double> sums_of(size_t piece) {
    const auto width = static_cast<size_t>(sums_a_piece_);
    return std::span(norm_sums_).subspan(piece * width, width);
  }
  // Element `which` of norm_sums() of every segment, added up in block order; one a segment.
  std::vector<double> segment_sums(int which) const;
  // The same over all segments: a norm or dot product of the whole model.
  double total_sum(int which) const;
  bool decays(const Piece& piece) const { return layout_.segments()[piece.segment].decay; }
  double lr_factor(const Piece& piece) const { return layout_.segments()[piece.segment].lr_factor; }

  const kernels::Table& kernels_ = kernels::best();

 private:
  // The floats of one of held_, all states one after the other.
  struct Chunk {
    int64_t begin = 0;
    int64_t size = 0;
    AlignedArray<float> values;
  };
  template <class Visit>
  void for_all_pieces(BlockRange blocks, const Visit& visit) const {
    const int64_t floats = (blocks.end - blocks.begin) * kBlock;
#pragma omp parallel for schedule(dynamic, 1) if (floats > 2 * kBlock)
    for (int64_t b = blocks.begin; b < blocks.end; ++b) {
      for (size_t p = first_piece_[static_cast<size_t>(b)];
           p < first_piece_[static_cast<size_t>(b) + 1]; ++p) {
        visit(pieces_[p], p);
      }
    }
  }
  int64_t first_float(BlockRange blocks) const { return blocks.begin * kBlock; }
  int64_t num_floats(BlockRange blocks) const {
    return std::min(blocks.end * kBlock, layout_.total_size()) - first_float(blocks);
  }
  Chunk& chunk_of(int64_t begin, int64_t size);

  std::vector<std::string> state_names_;
  std::vector<BlockRange> held_;
  std::vector<Chunk> chunks_;  // of held_
  int sums_a_piece_;
  std::vector<Piece> pieces_;
  std::vector<size_t> first_piece_;  // of each block, and one more
};

// The makers of the table, one for each rule.
#define DUCTILE_DECLARE(name, make, ...) \
  std::unique_ptr<Optimizer> make(const spec::OptimizerOptions&, const ParamLayout&);
DUCTILE_OPTIMIZERS(DUCTILE_DECLARE)
#undef DUCTILE_DECLARE

}  // namespace ductile::optim
