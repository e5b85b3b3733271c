#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/optim/adam_impl.h"
#include "ductile/optim/flat_optimizer_impl.h"
#include "ductile/optim/newton_schulz_impl.h"

namespace ductile::optim {
namespace {

// Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024) for the
// segments that are whole matrices, with a filter as a matrix of one row per output:
//   B = beta * B + (1 - beta) * G;  O = NewtonSchulz(nesterov ? beta * B + (1 - beta) * G : B)
//   w *= 1 - lr * wd;               w -= lr * adjusted * O
// and AdamW or SGD (sgd.cc) for all others. `adjusted` is 1, or max(1, sqrt(rows / columns)), which
// keeps the size of a layer's outputs (Yang et al., arXiv 2310.17813), or 0.2 * sqrt(max(rows,
// columns)), for updates of the size of AdamW's (Liu et al., arXiv 2502.16982, section 2.2).
//
// A matrix is updated by whoever holds it, so it must not be cut; see may_cut().
class Muon final : public FlatOptimizer {
 public:
  Muon(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 0, state_names_of(options.muon)),
        adam_eps_(options.adam.eps),
        sgd_nesterov_(options.sgd.nesterov),
        options_(options.muon) {
    begin_steps();
    if (options_.coefficients.size() != 3) {
      fail(ErrorCode::invalid_argument,
           "optimizer.muon.coefficients has {} values; give three: a, b and c",
           options_.coefficients.size());
    }
    for (size_t i = 0; i < 3; ++i) {
      newton_schulz_.coefficients[i] = static_cast<float>(options_.coefficients[i]);
    }
    inside_.resize(static_cast<size_t>(num_blocks()) + 1);
    for (size_t s = 0; s < layout_.segments().size(); ++s) {
      const Segment& segment = layout_.segments()[s];
      if (!segment.whole) continue;
      const int64_t first = segment.offset / kBlock;
      const int64_t last = (segment.offset + segment.size - 1) / kBlock;
      matrices_.push_back({s, {first, last + 1}});
      for (int64_t block = first + 1; block <= last; ++block) {
        inside_[static_cast<size_t>(block)] = true;
      }
    }
  }

  void set_options(const spec::OptimizerOptions& o) override {
    adam_eps_ = o.adam.eps;
    options_ = o.muon;
    begin_steps();
  }

  bool may_cut(int64_t block) const override { return !inside_[static_cast<size_t>(block)]; }

  void apply(const StepInput& in, BlockRange blocks) override {
    DUCTILE_CHECK(may_cut(blocks.begin) && may_cut(blocks.end), "blocks {} to {} cut a matrix",
                  blocks.begin, blocks.end);
    update_pieces(in, blocks, [&](const Piece& piece) {
      if (layout_.segments()[piece.segment].whole) return;
      options_.rest == "sgd" ? apply_sgd(in, piece) : apply_adamw(in, piece);
    });
    for (const Matrix& matrix : matrices_) {
      if (matrix.blocks.begin >= blocks.begin && matrix.blocks.end <= blocks.end &&
          trained(in, matrix.segment)) {
        apply_muon(in, matrix);
      }
    }
  }

 private:
  struct Matrix {
    size_t segment;
    BlockRange blocks;  // in which it lies
  };

  static std::vector<std::string> state_names_of(const spec::MuonOptions& options) {
    if (options.rest == "sgd") return {"momentum_buffer"};
    return {"exp_avg", "exp_avg_sq"};
  }

  void begin_steps() {
    newton_schulz_.steps = options_.steps;
    newton_schulz_.eps = above_zero(options_.eps);
  }

  double rest_lr(const StepInput& in, const Piece& piece) const {
    return in.hyper.lr * options_.rest_lr * lr_factor(piece);
  }

  void apply_adamw(const StepInput& in, const Piece& piece) {
    kernels::AdamScalars scalars = adam_scalars(in, rest_lr(in, piece), adam_eps_, num_steps() + 1);
    if (decays(piece)) {
      scalars.keep = static_cast<float>(1 - in.hyper.lr * options_.rest_lr * in.hyper.weight_decay);
    }
    float* const first = state_at(0, piece.begin);
    float* const second = state_at(1, piece.begin);
    update_strips(in, piece, [&](int64_t i, int64_t n) {
      const int64_t k = i - piece.begin;
      kernels_.adam(in.weights.data() + i, in.gradient.data() + i, first + k, second + k, n,
                    scalars);
    });
  }

  void apply_sgd(const StepInput& in, const Piece& piece) {
    const kernels::MomentumScalars scalars{
        .gradient_scale = in.gradient_scale,
        .decay =
            decays(piece) ? static_cast<float>(in.hyper.weight_decay / lr_factor(piece)) : 0.0F,
        .momentum = static_cast<float>(options_.rest_momentum),
        .inner = 1,
        .outer = static_cast<float>(rest_lr(in, piece))};
    float* const velocity = state_at(0, piece.begin);
    const auto update = sgd_nesterov_ ? kernels_.nesterov : kernels_.momentum;
    update_strips(in, piece, [&](int64_t i, int64_t n) {
      update(in.weights.data() + i, in.gradient.data() + i, velocity + (i - piece.begin), n,
             scalars);
    });
  }

  void apply_muon(const StepInput& in, const Matrix& matrix) {
    const Segment& segment = layout_.segments()[matrix.segment];
    const Hyper& h = in.hyper;
    const auto beta = static_cast<float>(h.momentum);
    const auto rest = static_cast<float>((1 - h.momentum) * in.gradient_scale);
    float* const w = in.weights.data() + segment.offset;
    const float* const g = in.gradient.data() + segment.offset;
    float* const b = state_at(0, segment.offset);
    AlignedArray<float> o(segment.size);
    kernels_.blend(b, beta, b, rest, g, segment.size);
    if (options_.nesterov) {
      kernels_.blend(o.data(), beta, b, rest, g, segment.size);
    } else {
      std::copy_n(b, segment.size, o.data());
    }
    orthogonalize(o.span(), segment.rows, newton_schulz_);
    const double decay = segment.decay ? 1 - h.lr * h.weight_decay : 1.0;
    const auto keep = static_cast<float>(decay * renormalization(segment, w));
    const auto rate = static_cast<float>(h.lr * segment.lr_factor * adjusted(segment));
    const Piece piece{segment.offset, segment.size, matrix.segment};
    update_strips(in, piece, [&](int64_t i, int64_t n) {
      float* const at = in.weights.data() + i;
      kernels_.blend(at, keep, at, -rate, o.data() + (i - segment.offset), n);
    });
  }

  double adjusted(const Segment& segment) const {
    const auto rows = static_cast<double>(segment.rows);
    const double columns = static_cast<double>(segment.size) / rows;
    if (options_.adjust_lr == "spectral") return std::max(1.0, std::sqrt(rows / columns));
    if (options_.adjust_lr == "rms") return 0.2 * std::sqrt(std::max(rows, columns));
    return 1;
  }

  // The factor that brings the matrix to the norm sqrt(rows), as airbench94_muon does before each
  // update (KellerJordan/cifar10-airbench); 1 where it is not asked for in this step.
  double renormalization(const Segment& segment, const float* w) const {
    if (options_.renormalize_every == 0 || num_steps() % options_.renormalize_every != 0) return 1;
    double squares = 0;
    for (int64_t i = 0; i < segment.size; i += kBlock) {
      squares += kernels_.sum_squares(w + i, std::min(kBlock, segment.size - i));
    }
    return squares > 0 ? std::sqrt(static_cast<double>(segment.rows) / squares) : 1;
  }

  double adam_eps_;
  bool sgd_nesterov_;
  spec::MuonOptions options_;
  NewtonSchulz newton_schulz_;
  std::vector<Matrix> matrices_;
  std::vector<bool> inside_;  // of each block: its first float is inside of a matrix
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const spec::OptimizerOptions& options,
                                     const ParamLayout& layout) {
  return std::make_unique<Muon>(options, layout);
}

}  // namespace ductile::optim
