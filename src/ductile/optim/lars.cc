#include <cmath>

#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

// LARS (You, Gitman and Ginsburg, arXiv 1708.03888). For every segment that decays:
//   trust = eta * |w| / (|g| + wd * |w| + eps), 1 where |w| or |g| is 0;
//   inside:  u = momentum * u + lr * trust * (g + wd * w);  w -= u
//   outside: u = momentum * u + g + wd * w;                 w -= lr * trust * u
// With trust_clip the rate of a segment is min(lr, trust) in place of lr * trust, as in apex's
// LARC. The others take plain momentum steps: trust 1, no weight decay.
class Lars final : public FlatOptimizer {
 public:
  Lars(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 2, {"momentum_buffer"}),
        eta_(options.lars.trust_coefficient),
        eps_(options.lars.eps),
        outside_(options.lars.trust_outside),
        clip_(options.lars.trust_clip) {}

  void set_options(const spec::OptimizerOptions& o) override {
    eta_ = o.lars.trust_coefficient;
    eps_ = o.lars.eps;
  }

  void prepare(const StepInput& in, BlockRange blocks, int) override {
    for_pieces(in, blocks, [&](const Piece& piece, size_t index) {
      if (!decays(piece)) return;  // its sums stay 0
      double* sums = &norm_sums_[2 * index];
      sums[0] = kernels_.sum_squares(in.weights.data() + piece.begin, piece.size);
      sums[1] = kernels_.sum_squares(in.gradient.data() + piece.begin, piece.size);
    });
  }

  void apply(const StepInput& in, BlockRange blocks) override {
    const Hyper& h = in.hyper;
    const std::vector<double> w_squares = segment_sums(0);
    const std::vector<double> g_squares = segment_sums(1);
    std::vector<kernels::MomentumScalars> scalars;
    for (size_t s = 0; s < w_squares.size(); ++s) {
      const bool decay = layout_.segments()[s].decay;
      const double w_norm = std::sqrt(w_squares[s]);
      const double g_norm = std::sqrt(g_squares[s]) * in.gradient_scale;
      const bool scaled = decay && w_norm != 0 && g_norm != 0;
      const double trust = scaled ? eta_ * w_norm / (g_norm + h.weight_decay * w_norm + eps_) : 1.0;
      const auto rate = static_cast<float>(scaled && clip_ ? std::min(h.lr, trust) : h.lr * trust);
      scalars.push_back({.gradient_scale = in.gradient_scale,
                         .decay = decay ? static_cast<float>(h.weight_decay) : 0.0F,
                         .momentum = static_cast<float>(h.momentum),
                         .inner = outside_ ? 1.0F : rate,
                         .outer = outside_ ? rate : 1.0F});
    }
    update_pieces(in, blocks, [&](const Piece& piece) {
      float* const velocity = state_at(0, piece.begin);
      update_strips(in, piece, [&](int64_t i, int64_t n) {
        kernels_.momentum(in.weights.data() + i, in.gradient.data() + i,
                          velocity + (i - piece.begin), n, scalars[piece.segment]);
      });
    });
  }

 private:
  double eta_, eps_;
  bool outside_, clip_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lars(const spec::OptimizerOptions& options,
                                     const ParamLayout& layout) {
  return std::make_unique<Lars>(options, layout);
}

}  // namespace ductile::optim
