#include <array>
#include <cmath>

#include "ductile/optim/adam_impl.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

// LAMB (You et al., arXiv 1904.00962v3, algorithm 2) with bias correction and phi the identity:
//   r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + wd * w
//   w -= lr * |w| / |r| * r, with the ratio 1 where |w| or |r| is 0.
// Segments that do not decay have wd 0 and ratio 1, which makes them Adam. Moments and
// direction are computed in both passes, which costs less than buffers to keep them, and leaves the
// state alone until the sums are there.
class Lamb final : public FlatOptimizer {
 public:
  Lamb(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 2, {"exp_avg", "exp_avg_sq"}), eps_(options.adam.eps) {}

  void set_options(const spec::OptimizerOptions& o) override { eps_ = o.adam.eps; }

  void prepare(const StepInput& in, BlockRange blocks, int) override {
    for_pieces(in, blocks, [&](const Piece& piece, size_t index) {
      if (!decays(piece)) return;  // its sums stay 0
      const kernels::LambScalars scalars = scalars_of(in, piece);
      alignas(64) std::array<float, kStrip> direction;
      double w_squares = 0;
      double r_squares = 0;
      const float* const first = state_at(0, piece.begin);
      const float* const second = state_at(1, piece.begin);
      const int64_t end = piece.begin + piece.size;
      for (int64_t i = piece.begin; i < end; i += kStrip) {
        const int64_t n = std::min(kStrip, end - i);
        const float* w = in.weights.data() + i;
        const int64_t k = i - piece.begin;
        kernels_.lamb_direction(direction.data(), w, in.gradient.data() + i, first + k, second + k,
                                n, scalars);
        w_squares += kernels_.sum_squares(w, n);
        r_squares += kernels_.sum_squares(direction.data(), n);
      }
      norm_sums_[2 * index] = w_squares;
      norm_sums_[2 * index + 1] = r_squares;
    });
  }

  void apply(const StepInput& in, BlockRange blocks) override {
    const std::vector<double> w_squares = segment_sums(0);
    const std::vector<double> r_squares = segment_sums(1);
    std::vector<float> rates;
    for (size_t s = 0; s < w_squares.size(); ++s) {
      const bool scaled = w_squares[s] != 0 && r_squares[s] != 0;
      const double ratio = scaled ? std::sqrt(w_squares[s]) / std::sqrt(r_squares[s]) : 1.0;
      rates.push_back(static_cast<float>(in.hyper.lr * ratio));
    }
    update_pieces(in, blocks, [&](const Piece& piece) {
      const kernels::LambScalars scalars = scalars_of(in, piece);
      float* const first = state_at(0, piece.begin);
      float* const second = state_at(1, piece.begin);
      update_strips(in, piece, [&](int64_t i, int64_t n) {
        const int64_t k = i - piece.begin;
        kernels_.lamb_apply(in.weights.data() + i, in.gradient.data() + i, first + k, second + k, n,
                            rates[piece.segment], scalars);
      });
    });
  }

 private:
  kernels::LambScalars scalars_of(const StepInput& in, const Piece& piece) const {
    const Hyper& h = in.hyper;
    const double t = static_cast<double>(num_steps() + 1);
    return {.gradient_scale = in.gradient_scale,
            .beta1 = static_cast<float>(h.beta1),
            .one_minus_beta1 = static_cast<float>(1 - h.beta1),
            .beta2 = static_cast<float>(h.beta2),
            .one_minus_beta2 = static_cast<float>(1 - h.beta2),
            .first_scale = static_cast<float>(1 / (1 - std::pow(h.beta1, t))),
            .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(h.beta2, t))),
            .eps = above_zero(eps_),
            .decay = decays(piece) ? static_cast<float>(h.weight_decay) : 0.0F};
  }

  double eps_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const spec::OptimizerOptions& options,
                                     const ParamLayout& layout) {
  return std::make_unique<Lamb>(options, layout);
}

}  // namespace ductile::optim
