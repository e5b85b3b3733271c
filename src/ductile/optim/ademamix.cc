#include <algorithm>
#include <cmath>

#include "ductile/optim/adam_impl.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

// The number of steps after which a mean with this decay weighs a value half, less 1; and back.
double half_life(double beta) { return std::log(0.5) / std::log(beta) - 1; }
double decay_of(double half_life) { return std::pow(0.5, 1 / (half_life + 1)); }

// AdEMAMix (Pagliardini, Ablin and Grangier, arXiv 2409.03137, section 3), with AdamW's decay:
//   theta -= eta * ((m1 / (1 - beta1^t) + alpha_t * m2) / (sqrt(nu / (1 - beta2^t)) + eps)
//                   + lambda * theta)
// where m2 decays by beta3_t. During `warmup` of the run alpha_t rises from 0 in a straight line,
// and the half-life of m2 from that of m1.
class Ademamix final : public FlatOptimizer {
 public:
  Ademamix(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 0, {"exp_avg", "exp_avg_slow", "exp_avg_sq"}),
        eps_(options.adam.eps),
        options_(options.ademamix) {}

  void set_options(const spec::OptimizerOptions& o) override {
    eps_ = o.adam.eps;
    options_ = o.ademamix;
  }

  void apply(const StepInput& in, BlockRange blocks) override {
    const Hyper& h = in.hyper;
    const double t = static_cast<double>(num_steps() + 1);
    const double risen = options_.warmup > 0 ? std::min(1.0, in.progress / options_.warmup) : 1.0;
    const double beta3 = beta3_at(risen, h.beta1);
    kernels::AdemamixScalars plain{
        .gradient_scale = in.gradient_scale,
        .beta1 = static_cast<float>(h.beta1),
        .one_minus_beta1 = static_cast<float>(1 - h.beta1),
        .beta2 = static_cast<float>(h.beta2),
        .one_minus_beta2 = static_cast<float>(1 - h.beta2),
        .beta3 = static_cast<float>(beta3),
        .one_minus_beta3 = static_cast<float>(1 - beta3),
        .keep = 1,
        .rate = static_cast<float>(h.lr),
        .m_part = static_cast<float>(1 / (1 - std::pow(h.beta1, t))),
        .alpha = static_cast<float>(risen * options_.alpha),
        .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(h.beta2, t))),
        .eps = above_zero(eps_)};
    kernels::AdemamixScalars decayed = plain;
    decayed.keep = static_cast<float>(1 - h.lr * h.weight_decay);
    update_pieces(in, blocks, [&](const Piece& piece) {
      kernels::AdemamixScalars scalars = decays(piece) ? decayed : plain;
      scalars.rate *= static_cast<float>(lr_factor(piece));
      float* const m1 = state_at(0, piece.begin);
      float* const m2 = state_at(1, piece.begin);
      float* const nu = state_at(2, piece.begin);
      update_strips(in, piece, [&](int64_t i, int64_t n) {
        const int64_t k = i - piece.begin;
        kernels_.ademamix(in.weights.data() + i, in.gradient.data() + i, m1 + k, m2 + k, nu + k, n,
                          scalars);
      });
    });
  }

 private:
  // A decay of 0 or 1 has no finite half-life to rise from or to.
  double beta3_at(double risen, double beta1) const {
    if (risen >= 1 || beta1 <= 0 || beta1 >= 1 || options_.beta3 <= 0 || options_.beta3 >= 1) {
      return options_.beta3;
    }
    const double now = decay_of((1 - risen) * half_life(beta1) + risen * half_life(options_.beta3));
    return std::min(now, options_.beta3);
  }

  double eps_;
  spec::AdemamixOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_ademamix(const spec::OptimizerOptions& options,
                                         const ParamLayout& layout) {
  return std::make_unique<Ademamix>(options, layout);
}

}  // namespace ductile::optim
