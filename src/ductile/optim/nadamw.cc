#include <cmath>

#include "ductile/optim/adam_impl.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

// NAdam (Dozat, "Incorporating Nesterov momentum into Adam", ICLR'16 workshop, algorithm 8) with
// the decoupled weight decay of AdamW. With momentum_decay psi > 0 the momentum rises, as Dozat and
// torch.optim.NAdam have it:
//   mu_t = beta1 * (1 - 0.96^(t * psi) / 2),  M_t = mu_1 * ... * mu_t,
//   direction = mu_{t+1} * m_t / (1 - M_{t+1}) + (1 - mu_t) * g_t / (1 - M_t).
// With 0 it is beta1 throughout, with Adam's bias correction (Choi et al., arXiv 1910.05446, table
// 1, the NAdamW of AlgoPerf): direction = (beta1 * m_t + (1 - beta1) * g_t) / (1 - beta1^t).
class Nadamw final : public FlatOptimizer {
 public:
  Nadamw(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 0, {"exp_avg", "exp_avg_sq"}),
        eps_(options.adam.eps),
        psi_(options.nadamw.momentum_decay) {
    if (psi_ > 0) scalars_ = {{"mu_product", 1}};
  }

  void set_options(const spec::OptimizerOptions& o) override {
    eps_ = o.adam.eps;
    psi_ = o.nadamw.momentum_decay;
  }

  void apply(const StepInput& in, BlockRange blocks) override {
    const Hyper& h = in.hyper;
    const double t = static_cast<double>(num_steps() + 1);
    double m_part = h.beta1 / (1 - std::pow(h.beta1, t));
    double g_part = (1 - h.beta1) / (1 - std::pow(h.beta1, t));
    if (psi_ > 0) {
      const double product = scalars_[0].value * mu(h, t);
      m_part = mu(h, t + 1) / (1 - product * mu(h, t + 1));
      g_part = (1 - mu(h, t)) / (1 - product);
    }
    kernels::NadamScalars plain{
        .gradient_scale = in.gradient_scale,
        .beta1 = static_cast<float>(h.beta1),
        .one_minus_beta1 = static_cast<float>(1 - h.beta1),
        .beta2 = static_cast<float>(h.beta2),
        .one_minus_beta2 = static_cast<float>(1 - h.beta2),
        .keep = 1,
        .rate = static_cast<float>(h.lr),
        .m_part = static_cast<float>(m_part),
        .g_part = static_cast<float>(g_part),
        .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(h.beta2, t))),
        .eps = above_zero(eps_)};
    kernels::NadamScalars decayed = plain;
    decayed.keep = static_cast<float>(1 - h.lr * h.weight_decay);
    update_pieces(in, blocks, [&](const Piece& piece) {
      kernels::NadamScalars scalars = decays(piece) ? decayed : plain;
      scalars.rate *= static_cast<float>(lr_factor(piece));
      float* const first = state_at(0, piece.begin);
      float* const second = state_at(1, piece.begin);
      update_strips(in, piece, [&](int64_t i, int64_t n) {
        const int64_t k = i - piece.begin;
        kernels_.nadam(in.weights.data() + i, in.gradient.data() + i, first + k, second + k, n,
                       scalars);
      });
    });
  }

 protected:
  void end_step(const StepInput& in) override {
    if (psi_ > 0) scalars_[0].value *= mu(in.hyper, static_cast<double>(num_steps() + 1));
  }

 private:
  double mu(const Hyper& h, double t) const {
    return h.beta1 * (1 - 0.5 * std::pow(0.96, t * psi_));
  }

  double eps_, psi_;
};

}  // namespace

std::unique_ptr<Optimizer> make_nadamw(const spec::OptimizerOptions& options,
                                       const ParamLayout& layout) {
  return std::make_unique<Nadamw>(options, layout);
}

}  // namespace ductile::optim
