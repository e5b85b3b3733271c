#include "ductile/optim/adam_impl.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

// Adam (Kingma and Ba, ICLR'15, algorithm 1) with L2 in the gradient, or AdamW (Loshchilov and
// Hutter, ICLR'19, algorithm 2) with w *= 1 - lr * weight_decay; both as torch.optim has them. A
// factor on lr leaves the decay of AdamW alone, and multiplies the whole step of Adam: L2 that it
// divided would be most of what the gradient is divided by where the factor is small.
class Adam final : public FlatOptimizer {
 public:
  Adam(const spec::OptimizerOptions& options, const ParamLayout& layout, bool decoupled)
      : FlatOptimizer(layout, 0, {"exp_avg", "exp_avg_sq"}),
        eps_(options.adam.eps),
        decoupled_(decoupled) {}

  void set_options(const spec::OptimizerOptions& o) override { eps_ = o.adam.eps; }

  void apply(const StepInput& in, BlockRange blocks) override {
    const Hyper& h = in.hyper;
    const kernels::AdamScalars plain = adam_scalars(in, h.lr, eps_, num_steps() + 1);
    kernels::AdamScalars decayed = plain;
    if (decoupled_) {
      decayed.keep = static_cast<float>(1 - h.lr * h.weight_decay);
    } else {
      decayed.l2 = static_cast<float>(h.weight_decay);
    }
    update_pieces(in, blocks, [&](const Piece& piece) {
      kernels::AdamScalars scalars = decays(piece) ? decayed : plain;
      scalars.rate *= static_cast<float>(lr_factor(piece));
      float* const first = state_at(0, piece.begin);
      float* const second = state_at(1, piece.begin);
      update_strips(in, piece, [&](int64_t i, int64_t n) {
        const int64_t k = i - piece.begin;
        kernels_.adam(in.weights.data() + i, in.gradient.data() + i, first + k, second + k, n,
                      scalars);
      });
    });
  }

 private:
  double eps_;
  bool decoupled_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const spec::OptimizerOptions& options,
                                     const ParamLayout& layout) {
  return std::make_unique<Adam>(options, layout, false);
}

std::unique_ptr<Optimizer> make_adamw(const spec::OptimizerOptions& options,
                                      const ParamLayout& layout) {
  return std::make_unique<Adam>(options, layout, true);
}

}  // namespace ductile::optim
