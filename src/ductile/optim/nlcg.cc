#include <array>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

constexpr double kEps = 1e-8;

// What the line search does where the loss has risen to more than 1 + `rise` * threshold times what
// it was: the step size is multiplied by `keep`, and the share `undo` of the last step taken back.
struct Rung {
  double rise, keep, undo;
};
constexpr std::array<Rung, 7> kLadder{{{0.15, 0.5, 0.9},
                                       {0.125, 0.7, 0.7},
                                       {0.10, 0.8, 0.5},
                                       {0.075, 0.9, 0.3},
                                       {0.05, 0.95, 0.2},
                                       {0.025, 0.975, 0.1},
                                       {0.01, 1.0, 0.1}}};

// Nonlinear conjugate gradients for large batches (Adya, Palakkode and Tuzel, arXiv 1812.02886; the
// details as in the authors' ncg_core_tfop.py, apple/ml-ncg). Over all parameters as one vector,
// with L2 in g, the step size b (at first 1), and r = -g:
//   step 0:  H = 1, d = s = r, rtd = r.s
//   else:    y = g - g_old,  p = lr * b * d_old
//            H = |H - (H p p H + eps) / (p.Hp + eps) + (y y + eps) / (y.p + eps)|, elementwise, and
//            unchanged where y.p < eps or p.Hp < eps
//            s = r / (H + eps),  n = r.s
//            beta = n / (rtd + eps), or (n - r.s_old) / (rtd + eps), within [0, 1];  rtd = n
//            d = s + beta * d_old
//   the line search chooses b_new and `undo` (see search())
//   w += lr * b_new * ((1 - undo) * d - undo * b / b_new * d_old)
// d_old is the direction of the step before, before its own line search; the authors' code reads a
// variable there that the same step overwrites, in an order that TensorFlow does not define.
class Nlcg final : public FlatOptimizer {
 public:
  Nlcg(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 4, state_names_of(options.nlcg)), options_(options.nlcg) {
    scalars_ = {{"rtd", 0}, {"step_size", 1}, {"loss", 0}, {"checked_loss", 0}};
  }

  void set_options(const spec::OptimizerOptions& o) override { options_ = o.nlcg; }

  int num_rounds() const override { return 2; }

  void prepare(const StepInput& in, BlockRange blocks, int round) override {
    const StepValues values = round == 0 ? StepValues{} : curvature(in);
    for_pieces(in, blocks, [&](const Piece& piece, size_t index) {
      std::span<double> sums = sums_of(index);
      if (round == 0) sums[kYp] = sums[kPhp] = 0;
      if (round == 1) sums[kRs] = sums[kRsOld] = 0;
      if (round == 0 && (num_steps() == 0 || !preconditioned())) return;
      Strip strip;
      for (int64_t k = 0; k < piece.size; k += kStrip) {
        const int64_t n = std::min(kStrip, piece.size - k);
        compute(in, piece, k, n, values, strip);
        if (round == 0) {
          sums[kYp] += kernels_.dot(strip.y.data(), strip.p.data(), n);
          kernels_.multiply(strip.h.data(), strip.h.data(), strip.p.data(), n);
          sums[kPhp] += kernels_.dot(strip.p.data(), strip.h.data(), n);
        } else {
          kernels_.blend(strip.p.data(), -1, strip.g.data(), 0, strip.g.data(), n);  // r
          sums[kRs] += kernels_.dot(strip.p.data(), strip.s.data(), n);
          if (!polak_ribiere()) continue;
          sums[kRsOld] += kernels_.dot(strip.p.data(), state_at(s_old(), piece.begin) + k, n);
        }
      }
    });
  }

  void apply(const StepInput& in, BlockRange blocks) override {
    const StepValues values = whole_values(in);
    const auto beta = static_cast<float>(values.beta);
    const auto ahead = static_cast<float>(in.hyper.lr * values.step_size * (1 - values.undo));
    const auto back = static_cast<float>(-in.hyper.lr * step_size() * values.undo);
    update_pieces(in, blocks, [&](const Piece& piece) {
      Strip strip;
      float* const direction = state_at(kDirection, piece.begin);
      const auto keep = [&](size_t which, const auto& from, int64_t k, int64_t n) {
        std::copy_n(from.data(), n, state_at(which, piece.begin) + k);
      };
      update_strips(in, piece, [&](int64_t i, int64_t n) {
        const int64_t k = i - piece.begin;
        compute(in, piece, k, n, values, strip);
        float* const w = in.weights.data() + i;
        float* const d = direction + k;
        // The part of the last step that is taken back, before its direction is gone.
        if (values.undo > 0) kernels_.add_scaled(w, d, n, back);
        kernels_.blend(d, 1, strip.s.data(), beta, d, n);
        kernels_.add_scaled(w, d, n, ahead);
        if (preconditioned()) {
          keep(kGradient, strip.g, k, n);
          keep(kHessian, strip.h, k, n);
        }
        if (polak_ribiere()) keep(s_old(), strip.s, k, n);
      });
    });
  }

 protected:
  void end_step(const StepInput& in) override {
    const StepValues values = whole_values(in);
    scalars_[0].value = total_sum(kRs);
    scalars_[1].value = values.step_size;
    scalars_[2].value = values.loss;
    scalars_[3].value = values.checked_loss;
  }

 private:
  enum { kDirection, kGradient, kHessian };  // state; s_old() is the last one
  enum { kYp, kPhp, kRs, kRsOld };           // sums

  static std::vector<std::string> state_names_of(const spec::NlcgOptions& options) {
    std::vector<std::string> names{"direction"};
    if (options.preconditioner == "bfgs") names.insert(names.end(), {"gradient", "hessian"});
    if (options.update == "polak_ribiere") names.push_back("preconditioned");
    return names;
  }

  // What the whole model has to say about a step.
  struct StepValues {
    bool bends = false;  // H changes
    double yp = 0, php = 0;
    double beta = 0, step_size = 1, undo = 0, loss = 0, checked_loss = 0;
  };
  // Some floats of a step: g, y, p, H after the step, s.
  struct Strip {
    alignas(64) std::array<float, kStrip> g, y, p, h, s;
  };

  bool polak_ribiere() const { return options_.update == "polak_ribiere"; }
  size_t s_old() const { return state_names().size() - 1; }
  bool preconditioned() const { return options_.preconditioner == "bfgs"; }
  double step_size() const { return scalars_[1].value; }

  void compute(const StepInput& in, const Piece& piece, int64_t k, int64_t n,
               const StepValues& values, Strip& out) {
    const auto l2 = decays(piece) ? static_cast<float>(in.hyper.weight_decay) : 0.0F;
    const int64_t i = piece.begin + k;
    kernels_.blend(out.g.data(), in.gradient_scale, in.gradient.data() + i, l2,
                   in.weights.data() + i, n);
    if (num_steps() == 0 || !preconditioned()) {
      out.h.fill(1);
      kernels_.blend(out.s.data(), -1, out.g.data(), 0, out.g.data(), n);
      return;
    }
    const auto moved = static_cast<float>(in.hyper.lr * step_size());
    const float* const d_old = state_at(kDirection, piece.begin) + k;
    kernels_.blend(out.y.data(), 1, out.g.data(), -1, state_at(kGradient, piece.begin) + k, n);
    kernels_.blend(out.p.data(), moved, d_old, 0, d_old, n);
    std::copy_n(state_at(kHessian, piece.begin) + k, n, out.h.data());
    if (values.bends) {
      kernels_.bfgs(out.h.data(), out.p.data(), out.y.data(), n,
                    {.php = static_cast<float>(values.php + kEps),
                     .yp = static_cast<float>(values.yp + kEps),
                     .eps = static_cast<float>(kEps)});
    }
    kernels_.blend(out.s.data(), -1, out.g.data(), 0, out.g.data(), n);
    kernels_.divide(out.s.data(), out.s.data(), out.h.data(), n, static_cast<float>(kEps));
  }

  // By the sums of the first round.
  StepValues curvature(const StepInput&) const {
    StepValues values;
    values.yp = total_sum(kYp);
    values.php = total_sum(kPhp);
    values.bends = values.yp >= kEps && values.php >= kEps;
    return values;
  }

  // By the sums of both.
  StepValues whole_values(const StepInput& in) const {
    StepValues values = curvature(in);
    if (num_steps() > 0) {
      const double n = total_sum(kRs);
      const double above = polak_ribiere() ? n - total_sum(kRsOld) : n;
      values.beta = std::clamp(above / (scalars_[0].value + kEps), 0.0, 1.0);
    }
    search(in.loss, values);
    return values;
  }

  // How many times `then` the loss is now. One that may be negative (a log-likelihood) has risen by
  // its difference.
  static double times(double now, double then) {
    return then > 0 ? now / then : 1 + (now - then) / std::max(-then, 1e-12);
  }

  // e is the mean of the loss, 0.7 e + 0.3 loss. "step" compares it with what it was at the last
  // comparison, "online" compares each step's loss with it.
  void search(double loss, StepValues& values) const {
    values.step_size = step_size();
    values.loss = num_steps() == 0 ? loss : 0.7 * scalars_[2].value + 0.3 * loss;
    values.checked_loss = num_steps() == 0 ? loss : scalars_[3].value;
    if (options_.line_search == "none" || num_steps() == 0) return;
    const bool online = options_.line_search == "online";
    if (!online && num_steps() % options_.line_search_every != 0) return;
    const double ratio = online ? times(loss, values.loss) : times(values.loss, scalars_[3].value);
    values.checked_loss = values.loss;
    if (ratio < 1 + kLadder.back().rise * options_.threshold) {
      values.step_size = std::min(1.0, step_size() * (online ? 1.02 : 1.05));
      return;
    }
    for (const Rung& rung : kLadder) {
      if (ratio > 1 + rung.rise * options_.threshold) {
        values.step_size = std::max(1e-4, step_size() * rung.keep);
        values.undo = rung.undo;
        return;
      }
    }
  }

  spec::NlcgOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_nlcg(const spec::OptimizerOptions& options,
                                     const ParamLayout& layout) {
  return std::make_unique<Nlcg>(options, layout);
}

}  // namespace ductile::optim
