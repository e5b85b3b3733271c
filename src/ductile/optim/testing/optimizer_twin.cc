#include "ductile/optim/testing/optimizer_twin.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/rng.h"

namespace ductile::optim::testing {
namespace {

double norm(std::span<const double> x) {
  double squares = 0;
  for (const double e : x) squares += e * e;
  return std::sqrt(squares);
}

double dot(const Vector& x, const Vector& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// One tensor of one step, with the moments that most rules keep.
struct Tensor {
  std::span<double> w, m, v, third;
  const Vector& g;
  double wd, lr;
  bool scaled;
};

void sgd(const spec::OptimizerOptions& o, const Hyper& h, const Tensor& t) {
  for (size_t i = 0; i < t.w.size(); ++i) {
    const double d = t.g[i] + t.wd * t.w[i];
    t.m[i] = h.momentum * t.m[i] + d;
    t.w[i] -= t.lr * (o.sgd.nesterov ? d + h.momentum * t.m[i] : t.m[i]);
  }
}

// 1 - beta^t for both betas.
struct Correction {
  Correction(const Hyper& h, int64_t steps)
      : first(1 - std::pow(h.beta1, static_cast<double>(steps))),
        second(1 - std::pow(h.beta2, static_cast<double>(steps))) {}
  double first, second;
};

double adam_direction(const spec::OptimizerOptions& o, const Hyper& h, const Correction& correction,
                      double& m, double& v, double d) {
  m = h.beta1 * m + (1 - h.beta1) * d;
  v = h.beta2 * v + (1 - h.beta2) * d * d;
  return m / correction.first / (std::sqrt(v / correction.second) + o.adam.eps);
}

void adam(const spec::OptimizerOptions& o, const Hyper& h, int64_t steps, const Tensor& t) {
  const bool decoupled = o.name != "adam";
  const Correction correction(h, steps);
  for (size_t i = 0; i < t.w.size(); ++i) {
    const double d = t.g[i] + (decoupled ? 0 : t.wd * t.w[i]);
    if (decoupled) t.w[i] -= t.lr * t.wd * t.w[i];
    t.w[i] -= t.lr * adam_direction(o, h, correction, t.m[i], t.v[i], d);
  }
}

double nadam_mu(const spec::OptimizerOptions& o, const Hyper& h, double t) {
  return h.beta1 * (1 - 0.5 * std::pow(0.96, t * o.nadamw.momentum_decay));
}

void nadamw(const spec::OptimizerOptions& o, const Hyper& h, int64_t steps, const Tensor& t) {
  const auto n = static_cast<double>(steps);
  double product = 1;
  for (int64_t i = 1; i <= steps; ++i) product *= nadam_mu(o, h, static_cast<double>(i));
  const Correction correction(h, steps);
  const double mu = nadam_mu(o, h, n), next = nadam_mu(o, h, n + 1);
  for (size_t i = 0; i < t.w.size(); ++i) {
    t.w[i] -= t.lr * t.wd * t.w[i];
    t.m[i] = h.beta1 * t.m[i] + (1 - h.beta1) * t.g[i];
    t.v[i] = h.beta2 * t.v[i] + (1 - h.beta2) * t.g[i] * t.g[i];
    double direction = (h.beta1 * t.m[i] + (1 - h.beta1) * t.g[i]) / correction.first;
    if (o.nadamw.momentum_decay > 0) {
      direction = next * t.m[i] / (1 - product * next) + (1 - mu) * t.g[i] / (1 - product);
    }
    t.w[i] -= t.lr * direction / (std::sqrt(t.v[i] / correction.second) + o.adam.eps);
  }
}

void ademamix(const spec::OptimizerOptions& o, const Hyper& h, int64_t steps, double progress,
              const Tensor& t) {
  const Correction correction(h, steps);
  // Equations of section 3: alpha in a straight line, and beta3 in its closed form.
  const double risen = o.ademamix.warmup > 0 ? std::min(1.0, progress / o.ademamix.warmup) : 1;
  const double alpha = std::min(risen * o.ademamix.alpha, o.ademamix.alpha);
  const double log_start = std::log(h.beta1), log_end = std::log(o.ademamix.beta3);
  const double beta3 =
      std::min(std::exp(log_start * log_end / ((1 - risen) * log_end + risen * log_start)),
               o.ademamix.beta3);
  for (size_t i = 0; i < t.w.size(); ++i) {
    t.m[i] = h.beta1 * t.m[i] + (1 - h.beta1) * t.g[i];
    t.third[i] = beta3 * t.third[i] + (1 - beta3) * t.g[i];
    t.v[i] = h.beta2 * t.v[i] + (1 - h.beta2) * t.g[i] * t.g[i];
    const double m_hat = t.m[i] / correction.first;
    const double v_hat = t.v[i] / correction.second;
    t.w[i] -=
        t.lr * ((m_hat + alpha * t.third[i]) / (std::sqrt(v_hat) + o.adam.eps) + t.wd * t.w[i]);
  }
}

// t.m is z and t.third is x; gamma and the sum of squares are those of this step.
void schedule_free(const spec::OptimizerOptions& o, const Hyper& h, double gamma, double squares,
                   const Tensor& t) {
  const double c = squares > 0 ? gamma * gamma / squares : 0;
  for (size_t i = 0; i < t.w.size(); ++i) {
    t.v[i] = h.beta2 * t.v[i] + (1 - h.beta2) * t.g[i] * t.g[i];
    t.m[i] -= gamma * t.g[i] / (std::sqrt(t.v[i]) + o.adam.eps) + gamma * t.wd * t.w[i];
    t.third[i] = (1 - c) * t.third[i] + c * t.m[i];
    t.w[i] = (1 - h.beta1) * t.m[i] + h.beta1 * t.third[i];
  }
}

void lars(const spec::OptimizerOptions& o, const Hyper& h, const Tensor& t) {
  const double w_norm = norm(t.w), g_norm = norm(t.g);
  double rate = t.lr;
  if (t.scaled && w_norm > 0 && g_norm > 0) {
    const double trust = o.lars.trust_coefficient * w_norm / (g_norm + t.wd * w_norm + o.lars.eps);
    rate = o.lars.trust_clip ? t.lr * std::min(trust / t.lr, 1.0) : t.lr * trust;
  }
  for (size_t i = 0; i < t.w.size(); ++i) {
    const double d = t.g[i] + t.wd * t.w[i];
    t.m[i] = h.momentum * t.m[i] + (o.lars.trust_outside ? d : rate * d);
    t.w[i] -= o.lars.trust_outside ? rate * t.m[i] : t.m[i];
  }
}

void lamb(const spec::OptimizerOptions& o, const Hyper& h, int64_t steps, const Tensor& t) {
  Vector r(t.w.size());
  const Correction correction(h, steps);
  for (size_t i = 0; i < r.size(); ++i) {
    r[i] = adam_direction(o, h, correction, t.m[i], t.v[i], t.g[i]) + t.wd * t.w[i];
  }
  const double w_norm = norm(t.w), r_norm = norm(r);
  const double ratio = t.scaled && w_norm > 0 && r_norm > 0 ? w_norm / r_norm : 1;
  for (size_t i = 0; i < r.size(); ++i) t.w[i] -= t.lr * ratio * r[i];
}

}  // namespace

// ---- Buffers.

Buffers::Buffers(const ParamLayout& layout, uint64_t seed)
    : layout(layout),
      weights(static_cast<size_t>(layout.total_size())),
      gradient(weights.size()),
      half(weights.size()),
      ema(weights.size()) {
  Rng rng(seed);
  for (const Segment& s : layout.segments()) {
    if (s.name.starts_with("zero")) continue;
    for (int64_t i = 0; i < s.size; ++i) at(weights, s, i) = 0.2F * rng.normal();
  }
  ema = weights;
}

void Buffers::draw_gradient(uint64_t step) {
  Rng rng(99, step);
  for (const Segment& s : layout.segments()) {
    for (int64_t i = 0; i < s.size; ++i) at(gradient, s, i) = 0.3F * (rng.uniform() - 0.5F);
  }
}

StepInput Buffers::input(double lr) {
  hyper.lr = lr;
  return {.weights = weights, .gradient = gradient, .hyper = hyper, .gradient_scale = 0.5F};
}

StepInput Buffers::full_input(double lr, DType type) {
  StepInput in = input(lr);
  in.half_weights = half;
  in.half = type;
  in.ema = ema;
  in.ema_decay = 0.75F;
  return in;
}

ParamLayout example_layout(const spec::OptimizerOptions& o) {
  ParamLayout layout(o);
  layout.add("a.weight", {50, 28, 5, 5}, false);
  layout.add("a.bias", {5}, false);
  layout.add("norm.weight", {17}, true);
  layout.add("none.weight", {0, 2}, false);
  layout.add("zero.weight", {5, 8}, false);  // stays 0 under LARS's and LAMB's zero-norm rule
  layout.add("embed.weight", {9, 4}, false);
  layout.add("b.weight", {75, 40}, false);
  layout.add("scalar", {}, false);
  return layout;
}

StepInput moved(StepInput in, uint64_t step) {
  const auto at = static_cast<double>(step);
  in.epoch = at / 10;
  in.progress = at / 100;
  in.loss = 2 + std::sin(at);
  return in;
}

// ---- The twin.

Twin::Twin(const spec::OptimizerOptions& options, const Buffers& buffers)
    : w(buffers.weights.begin(), buffers.weights.end()), o_(options), layout_(buffers.layout) {}

Vector& Twin::state(const std::string& name) {
  Vector& values = state_[name];
  values.resize(w.size());
  return values;
}

Vector Twin::meant() const {
  if (o_.name == "schedule_free" && steps_ > 0) return state_.at("x");
  Vector out = w;
  if (o_.name == "neumann" && steps_ > 0) {
    for (size_t i = 0; i < out.size(); ++i) out[i] -= kept_.at("mu") * state_.at("m")[i];
  }
  return out;
}

void Twin::step(const StepInput& in) {
  ++steps_;
  const Hyper& h = in.hyper;
  if (o_.name == "nlcg") return step_nlcg(in);
  if (o_.name == "neumann") return step_neumann(in);
  if (o_.name == "schedule_free" && steps_ == 1) state("z") = state("x") = w;
  const double gamma = h.lr * std::sqrt(1 - std::pow(h.beta2, static_cast<double>(steps_)));
  if (o_.name == "schedule_free") kept_["squares"] += gamma * gamma;
  for (const Segment& s : layout_.segments()) {
    if (in.epoch >= s.trained_epochs) continue;
    const auto begin = static_cast<size_t>(s.offset), size = static_cast<size_t>(s.size);
    Vector g(size);
    for (size_t i = 0; i < size; ++i) g[i] = double{in.gradient[begin + i]} * in.gradient_scale;
    const auto part = [&](Vector& of) { return std::span(of).subspan(begin, size); };
    const bool free = o_.name == "schedule_free";
    // What a step takes by decay does not depend on the factor, but for L2 in Adam's gradient.
    const double wd = o_.name == "adam" ? h.weight_decay : h.weight_decay / s.lr_factor;
    const Tensor t{part(w),
                   part(state(free ? "z" : "m")),
                   part(state("v")),
                   part(state("x")),
                   g,
                   s.decay ? wd : 0,
                   h.lr * s.lr_factor,
                   s.decay};
    if (o_.name == "sgd") sgd(o_, h, t);
    if (o_.name == "adam" || o_.name == "adamw") adam(o_, h, steps_, t);
    if (o_.name == "nadamw") nadamw(o_, h, steps_, t);
    if (o_.name == "ademamix") ademamix(o_, h, steps_, in.progress, t);
    if (free) schedule_free(o_, h, gamma, kept_["squares"], t);
    if (o_.name == "lars") lars(o_, h, t);
    if (o_.name == "lamb") lamb(o_, h, steps_, t);
    if (o_.name == "muon" && s.whole) muon(t.w, g, t.m, s, h);
    if (o_.name == "muon" && !s.whole) {
      Tensor rest = t;
      rest.lr *= o_.muon.rest_lr;
      Hyper of_rest = h;
      of_rest.momentum = o_.muon.rest_momentum;
      o_.muon.rest == "sgd" ? sgd(o_, of_rest, rest) : adam(o_, h, steps_, rest);
    }
  }
}

void Twin::muon(std::span<double> w_s, const Vector& g, std::span<double> m, const Segment& s,
                const Hyper& h) {
  Vector matrix(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    m[i] = h.momentum * m[i] + (1 - h.momentum) * g[i];
    matrix[i] = o_.muon.nesterov ? h.momentum * m[i] + (1 - h.momentum) * g[i] : m[i];
  }
  const Vector o = newton_schulz(matrix, s.rows, o_.muon.steps, o_.muon.coefficients, o_.muon.eps);
  const auto r = static_cast<double>(s.rows);
  const double c = static_cast<double>(g.size()) / r;
  double factor = 1;
  if (o_.muon.adjust_lr == "spectral") factor = std::max(1.0, std::sqrt(r / c));
  if (o_.muon.adjust_lr == "rms") factor = 0.2 * std::sqrt(std::max(r, c));
  double scale = 1;
  if (o_.muon.renormalize_every > 0 && (steps_ - 1) % o_.muon.renormalize_every == 0 &&
      norm(w_s) > 0) {
    scale = std::sqrt(r) / norm(w_s);
  }
  for (size_t i = 0; i < g.size(); ++i) {
    w_s[i] = scale * w_s[i] * (s.decay ? 1 - h.lr * h.weight_decay : 1) -
             h.lr * s.lr_factor * factor * o[i];
  }
}

void Twin::step_neumann(const StepInput& in) {
  const spec::NeumannOptions& n = o_.neumann;
  Vector &m = state("m"), &v = state("v");
  if (steps_ == 1) {
    v = w;
    kept_["mu"] = kept_["t"] = 0;
  }
  double tensors = 0, r_squared = 0;
  for (const Segment& s : layout_.segments()) tensors += s.size > 0 ? 1 : 0;
  for (size_t i = 0; i < w.size(); ++i) r_squared += (w[i] - v[i]) * (w[i] - v[i]);
  const double r = std::sqrt(r_squared);
  const double beta =
      n.beta * (n.variables == "tensors" ? tensors : static_cast<double>(layout_.num_parameters()));
  const bool sgd = kept_["t"] == 0 && in.epoch < n.warmup_epochs;
  bool reset = false;
  if (!sgd) {
    const double t = ++kept_["t"];
    if (t == 1) {
      kept_["begin"] = in.epoch;
      kept_["resets"] = 0;
      reset = true;
    } else {
      // The periods are K, 2 K, 4 K, ...: together (2^(n + 1) - 1) K.
      const double due = (std::pow(2, kept_["resets"] + 1) - 1) * n.reset_epochs;
      reset = n.reset_epochs > 0 && in.epoch - kept_["begin"] >= due;
      if (reset) ++kept_["resets"];
    }
    const double unit = n.mu_unit == "steps" ? t : in.epoch - kept_["begin"];
    const double mu = std::min(in.hyper.momentum, std::max(n.mu_start, 1 - 1 / (1 + unit)));
    kept_["mu"] = reset ? 0 : mu;
  }
  const double mu = kept_["mu"], eta = in.hyper.lr;
  double force = r > 0 ? (n.alpha * r * r - beta / (r * r)) / r : 0;
  if (eta > 0 && force < -1 / eta) force = -1 / eta;
  for (const Segment& s : layout_.segments()) {
    for (auto i = static_cast<size_t>(s.offset); i < static_cast<size_t>(s.offset + s.size); ++i) {
      const double g =
          double{in.gradient[i]} * in.gradient_scale + (s.decay ? in.hyper.weight_decay * w[i] : 0);
      if (sgd) {
        w[i] -= eta * g;
      } else if (reset) {
        m[i] = -eta * g;
      } else {
        const double d = g + force * (w[i] - v[i]);
        m[i] = mu * m[i] - eta * d;
        w[i] += mu * m[i] - eta * d;
      }
      v[i] = w[i] + n.gamma * (v[i] - w[i]);
    }
  }
}

void Twin::step_nlcg(const StepInput& in) {
  constexpr double kEps = 1e-8;
  const spec::NlcgOptions& n = o_.nlcg;
  const bool first = steps_ == 1, bfgs = n.preconditioner == "bfgs";
  Vector g(w.size()), r(w.size()), s(w.size()), d(w.size());
  for (const Segment& segment : layout_.segments()) {
    for (auto i = static_cast<size_t>(segment.offset);
         i < static_cast<size_t>(segment.offset + segment.size); ++i) {
      g[i] = double{in.gradient[i]} * in.gradient_scale +
             (segment.decay ? in.hyper.weight_decay * w[i] : 0);
      r[i] = -g[i];
    }
  }
  Vector &g_old = state("g"), &d_old = state("d"), &s_old = state("s"), &hessian = state("h");
  if (first) {
    hessian.assign(w.size(), 1);
    kept_["b"] = 1;
  }
  const double lr = in.hyper.lr, b = kept_["b"];
  if (!first && bfgs) {
    Vector y(w.size()), p(w.size()), hp(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      y[i] = g[i] - g_old[i];
      p[i] = lr * b * d_old[i];
      hp[i] = hessian[i] * p[i];
    }
    const double yp = dot(y, p), php = dot(p, hp);
    for (size_t i = 0; yp >= kEps && php >= kEps && i < w.size(); ++i) {
      hessian[i] = std::fabs(hessian[i] - (hp[i] * p[i] * hessian[i] + kEps) / (php + kEps) +
                             (y[i] * y[i] + kEps) / (yp + kEps));
    }
  }
  for (size_t i = 0; i < w.size(); ++i) s[i] = first || !bfgs ? r[i] : r[i] / (hessian[i] + kEps);
  const double rs = dot(r, s);
  double beta = n.update == "polak_ribiere" ? rs - dot(r, s_old) : rs;
  beta = first ? 0 : std::clamp(beta / (kept_["rtd"] + kEps), 0.0, 1.0);
  for (size_t i = 0; i < w.size(); ++i) d[i] = s[i] + beta * d_old[i];

  kept_["e"] = first ? in.loss : 0.7 * kept_["e"] + 0.3 * in.loss;
  if (first) kept_["checked"] = in.loss;
  double b_new = b, undo = 0;
  const bool online = n.line_search == "online";
  const bool asked = online || (n.line_search == "step" && (steps_ - 1) % n.line_search_every == 0);
  if (!first && asked) {
    const double now = online ? in.loss : kept_["e"], then = online ? kept_["e"] : kept_["checked"];
    const double q = then > 0 ? now / then : 1 + (now - then) / std::max(-then, 1e-12);
    kept_["checked"] = kept_["e"];
    const double th = n.threshold;
    double k = 1;
    if (q > 1 + 0.15 * th) {
      k = 0.5, undo = 0.9;
    } else if (q > 1 + 0.125 * th) {
      k = 0.7, undo = 0.7;
    } else if (q > 1 + 0.10 * th) {
      k = 0.8, undo = 0.5;
    } else if (q > 1 + 0.075 * th) {
      k = 0.9, undo = 0.3;
    } else if (q > 1 + 0.05 * th) {
      k = 0.95, undo = 0.2;
    } else if (q > 1 + 0.025 * th) {
      k = 0.975, undo = 0.1;
    } else if (q > 1 + 0.01 * th) {
      k = 1, undo = 0.1;
    }
    b_new = q < 1 + 0.01 * th ? std::min(1.0, (online ? 1.02 : 1.05) * b) : std::max(1e-4, k * b);
  }
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] += (1 - undo) * lr * b_new * d[i] - undo * lr * b * d_old[i];
  }
  kept_["b"] = b_new;
  kept_["rtd"] = rs;
  g_old = g;
  d_old = d;
  s_old = s;
}

Vector newton_schulz(Vector matrix, int64_t rows, int64_t steps, std::span<const double> abc,
                     double eps) {
  const size_t m = static_cast<size_t>(rows), n = matrix.size() / m;
  const double scale = norm(matrix) + eps;
  for (double& x : matrix) x /= scale;
  // X <- a X + b G X + c G G X with G = X X', or the same from the right where X is tall: the two
  // are equal, since (X X') X = X (X' X).
  const auto times = [](const Vector& x, const Vector& y, size_t rows_x, size_t inner,
                        size_t columns) {
    Vector out(rows_x * columns);
    for (size_t i = 0; i < rows_x; ++i) {
      for (size_t k = 0; k < inner; ++k) {
        for (size_t j = 0; j < columns; ++j) {
          out[i * columns + j] += x[i * inner + k] * y[k * columns + j];
        }
      }
    }
    return out;
  };
  Vector transposed(matrix.size());
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < m; ++i) {
      for (size_t j = 0; j < n; ++j) transposed[j * m + i] = matrix[i * n + j];
    }
    Vector cubic, fifth;
    if (m <= n) {
      const Vector gram = times(matrix, transposed, m, n, m);
      cubic = times(gram, matrix, m, m, n);
      fifth = times(gram, cubic, m, m, n);
    } else {
      const Vector gram = times(transposed, matrix, n, m, n);
      cubic = times(matrix, gram, m, n, n);
      fifth = times(cubic, gram, m, n, n);
    }
    for (size_t i = 0; i < matrix.size(); ++i) {
      matrix[i] = abc[0] * matrix[i] + abc[1] * cubic[i] + abc[2] * fifth[i];
    }
  }
  return matrix;
}

}  // namespace ductile::optim::testing
