#include <algorithm>
#include <cmath>

#include "ductile/optim/adam_impl.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

// Schedule-Free AdamW (Defazio et al., "The Road Less Scheduled", arXiv 2405.15682, algorithm 1).
// The trained weights are y, the point of the gradient; the weights that are evaluated are x:
//   gamma_t = gamma * sqrt(1 - beta2^t)     (a warm-up is that of [schedule])
//   z_{t+1} = z_t - gamma_t * g_t / (sqrt(v_t) + eps) - gamma_t * lambda * y_t
//   c_{t+1} = gamma_t^2 / (gamma_1^2 + ... + gamma_t^2)        (equation 23)
//   x_{t+1} = (1 - c_{t+1}) * x_t + c_{t+1} * z_{t+1}
//   y_{t+1} = (1 - beta1) * z_{t+1} + beta1 * x_{t+1}
// x is kept beside z: computed from y and z it would lose bits, and all of them where beta1
// changes.
class ScheduleFree final : public FlatOptimizer {
 public:
  ScheduleFree(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 0, {"z", "x", "exp_avg_sq"}), eps_(options.adam.eps) {
    scalars_ = {{"gamma_squares", 0}};
    refuse_frozen("schedule_free");
  }

  std::vector<Term> evaluated() const override {
    if (num_steps() == 0) return {Term{}};
    return {{"x", 1}};
  }
  bool means_others() const override { return true; }

  void set_options(const spec::OptimizerOptions& o) override { eps_ = o.adam.eps; }

  void apply(const StepInput& in, BlockRange blocks) override {
    const Hyper& h = in.hyper;
    const double gamma = gamma_of(in);
    const double squares = scalars_[0].value + gamma * gamma;
    kernels::ScheduleFreeScalars plain{
        .gradient_scale = in.gradient_scale,
        .beta1 = static_cast<float>(h.beta1),
        .one_minus_beta1 = static_cast<float>(1 - h.beta1),
        .beta2 = static_cast<float>(h.beta2),
        .one_minus_beta2 = static_cast<float>(1 - h.beta2),
        .rate = static_cast<float>(gamma),
        .decay = 0,
        .c = squares > 0 ? static_cast<float>(gamma * gamma / squares) : 0.0F,
        .eps = above_zero(eps_)};
    kernels::ScheduleFreeScalars decayed = plain;
    decayed.decay = static_cast<float>(gamma * h.weight_decay);
    update_pieces(in, blocks, [&](const Piece& piece) {
      const kernels::ScheduleFreeScalars& scalars = decays(piece) ? decayed : plain;
      float* const z = state_at(0, piece.begin);
      float* const x = state_at(1, piece.begin);
      float* const v = state_at(2, piece.begin);
      if (num_steps() == 0) {  // z_1 = x_1 = y_1
        std::copy_n(in.weights.data() + piece.begin, piece.size, z);
        std::copy_n(in.weights.data() + piece.begin, piece.size, x);
      }
      update_strips(
          in, piece,
          [&](int64_t i, int64_t n) {
            const int64_t k = i - piece.begin;
            kernels_.schedule_free(in.weights.data() + i, in.gradient.data() + i, z + k, x + k,
                                   v + k, n, scalars);
          },
          [&](int64_t i, int64_t) { return x + (i - piece.begin); });
    });
  }

 protected:
  void end_step(const StepInput& in) override {
    const double gamma = gamma_of(in);
    scalars_[0].value += gamma * gamma;
  }

 private:
  double gamma_of(const StepInput& in) const {
    return in.hyper.lr *
           std::sqrt(1 - std::pow(in.hyper.beta2, static_cast<double>(num_steps() + 1)));
  }

  double eps_;
};

}  // namespace

std::unique_ptr<Optimizer> make_schedule_free(const spec::OptimizerOptions& options,
                                              const ParamLayout& layout) {
  return std::make_unique<ScheduleFree>(options, layout);
}

}  // namespace ductile::optim
