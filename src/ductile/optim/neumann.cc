#include <array>
#include <cmath>

#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

// The Neumann optimiser (Krishnan, Xiao and Saurous, arXiv 1712.03298, algorithm 2). The trained
// weights w are displaced: they hold w + mu * m. v is their mean, m the Neumann iterate. After
// `warmup_epochs` of plain SGD, in step t:
//   at a reset (t = 1, then after K epochs, 2 K more, 4 K more, ...):  m = -eta * g, mu = 0
//   else:  r = |w - v|,  d = g + (alpha * r^2 - beta / r^2) * (w - v) / r
//          m = mu * m - eta * d,  w = w + mu * m - eta * d
//   v = w + gamma * (v - w)
// The weights to evaluate are w - mu * m. What the paper leaves open:
// - r is the norm over all tensors, and beta is that of the paper's table 1 (1e-5) times their
//   number. At r = 0 there is no regulariser, and near it the repulsion at most doubles r in a
//   step: beta / r^2 has no bound, and r is tiny after small steps (a schedule that warms up).
// - mu = 1 - 1 / (1 + t), at least mu_start and at most optimizer.momentum. t counts steps, or
//   epochs, from the end of the SGD steps.
// - v averages during the SGD steps, too, so that r is not 0 after them.
// - Weight decay is L2 in g.
class Neumann final : public FlatOptimizer {
 public:
  Neumann(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 1, {"m", "v"}), options_(options.neumann) {
    scalars_ = {{"t", 0}, {"mu", 0}, {"begin_epoch", 0}, {"reset_epoch", 0}, {"period", 0}};
    for (const Segment& s : layout_.segments()) variables_ += s.size > 0 ? 1 : 0;
    if (options_.variables == "scalars") {
      variables_ = static_cast<double>(layout_.num_parameters());
    }
    beta_ = options_.beta * variables_;
    refuse_frozen("neumann");
  }

  void set_options(const spec::OptimizerOptions& o) override {
    options_ = o.neumann;
    beta_ = options_.beta * variables_;
  }

  std::vector<Term> evaluated() const override { return {Term{}, {"m", -scalars_[kMu].value}}; }

  void prepare(const StepInput& in, BlockRange blocks, int) override {
    for_pieces(in, blocks, [&](const Piece& piece, size_t index) {
      alignas(64) std::array<float, kStrip> difference;
      const float* const v = state_at(kV, piece.begin);
      double squares = 0;
      for (int64_t i = 0; i < piece.size; i += kStrip) {
        const int64_t n = std::min(kStrip, piece.size - i);
        kernels_.blend(difference.data(), 1, in.weights.data() + piece.begin + i, -1, v + i, n);
        squares += kernels_.sum_squares(difference.data(), n);
      }
      // Before the first step v is w.
      sums_of(index)[0] = num_steps() == 0 ? 0 : squares;
    });
  }

  void apply(const StepInput& in, BlockRange blocks) override {
    const State next = next_of(in);
    const double eta = in.hyper.lr;
    kernels::NeumannScalars plain{.gradient_scale = in.gradient_scale,
                                  .l2 = 0,
                                  .force = 0,
                                  .mu = 0,
                                  .m_rate = 0,
                                  .w_mu = 0,
                                  .w_rate = 0,
                                  .gamma = static_cast<float>(options_.gamma)};
    if (next.kind == Kind::sgd) plain.w_rate = static_cast<float>(eta);
    if (next.kind == Kind::reset) plain.m_rate = static_cast<float>(eta);
    if (next.kind == Kind::iterate) {
      plain.m_rate = plain.w_rate = static_cast<float>(eta);
      plain.mu = plain.w_mu = static_cast<float>(next.mu);
      const double r = std::sqrt(total_sum(0));
      const double force = (options_.alpha * r * r - beta_ / (r * r)) / r;
      plain.force = r > 0 ? static_cast<float>(eta > 0 ? std::max(force, -1 / eta) : force) : 0.0F;
    }
    kernels::NeumannScalars decayed = plain;
    decayed.l2 = static_cast<float>(in.hyper.weight_decay);
    const auto mu = static_cast<float>(-next.mu);
    update_pieces(in, blocks, [&](const Piece& piece) {
      const kernels::NeumannScalars& scalars = decays(piece) ? decayed : plain;
      float* const m = state_at(kM, piece.begin);
      float* const v = state_at(kV, piece.begin);
      if (num_steps() == 0) std::copy_n(in.weights.data() + piece.begin, piece.size, v);
      alignas(64) std::array<float, kStrip> meant;
      update_strips(
          in, piece,
          [&](int64_t i, int64_t n) {
            const int64_t k = i - piece.begin;
            kernels_.neumann(in.weights.data() + i, in.gradient.data() + i, m + k, v + k, n,
                             scalars);
          },
          [&](int64_t i, int64_t n) -> const float* {
            std::copy_n(in.weights.data() + i, n, meant.data());
            kernels_.add_scaled(meant.data(), m + (i - piece.begin), n, mu);
            return meant.data();
          });
    });
  }

 protected:
  void end_step(const StepInput& in) override {
    const State next = next_of(in);
    scalars_[kT].value = next.t;
    scalars_[kMu].value = next.mu;
    scalars_[kBegin].value = next.begin_epoch;
    scalars_[kReset].value = next.reset_epoch;
    scalars_[kPeriod].value = next.period;
  }

 private:
  enum { kM, kV };                            // state
  enum { kT, kMu, kBegin, kReset, kPeriod };  // scalars
  enum class Kind { sgd, reset, iterate };
  struct State {  // after the step
    Kind kind = Kind::sgd;
    double t = 0, mu = 0, begin_epoch = 0, reset_epoch = 0, period = 0;
  };

  State next_of(const StepInput& in) const {
    State next;
    if (scalars_[kT].value == 0 && in.epoch < options_.warmup_epochs) return next;
    next.t = scalars_[kT].value + 1;
    next.begin_epoch = next.t == 1 ? in.epoch : scalars_[kBegin].value;
    next.reset_epoch = scalars_[kReset].value;
    next.period = scalars_[kPeriod].value;
    next.kind = Kind::iterate;
    if (next.t == 1) {
      next.kind = Kind::reset;
      next.period = options_.reset_epochs;
      next.reset_epoch = in.epoch + next.period;
    } else if (next.period > 0 && in.epoch >= next.reset_epoch) {
      next.kind = Kind::reset;
      next.period *= 2;
      next.reset_epoch += next.period;
    }
    if (next.kind == Kind::reset) return next;  // w has nothing of the new m in it
    const double t = options_.mu_unit == "epochs" ? in.epoch - next.begin_epoch : next.t;
    next.mu = std::min(in.hyper.momentum, std::max(options_.mu_start, 1 - 1 / (1 + t)));
    return next;
  }

  spec::NeumannOptions options_;
  double variables_ = 0, beta_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_neumann(const spec::OptimizerOptions& options,
                                        const ParamLayout& layout) {
  return std::make_unique<Neumann>(options, layout);
}

}  // namespace ductile::optim
