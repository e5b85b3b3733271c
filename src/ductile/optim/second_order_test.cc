// Neumann and NLCG on quadratics f(w) = w'Aw / 2, where it is known what they have to do.
#include <cmath>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/optim/testing/optimizer_twin.h"

namespace ductile::optim {
namespace {

using testing::Vector;

// A model of one vector, and a symmetric matrix with eigenvalues between `least` and 1.
struct Quadratic {
  explicit Quadratic(int64_t n, double least, uint64_t seed = 1) : size(static_cast<size_t>(n)) {
    Rng rng(seed);
    // A = least * I + Q with Q = B'B scaled to a trace bound below 1 - least.
    Vector b(size * size);
    for (double& x : b) x = rng.normal();
    a.assign(size * size, 0);
    double trace = 0;
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j < size; ++j) {
        for (size_t k = 0; k < size; ++k) a[i * size + j] += b[k * size + i] * b[k * size + j];
      }
      trace += a[i * size + i];
    }
    const double scale = (1 - least) * static_cast<double>(size) / (4 * trace);
    for (double& x : a) x *= scale;
    for (size_t i = 0; i < size; ++i) a[i * size + i] += least;
    for (size_t i = 0; i < size; ++i) start.push_back(rng.normal());
  }

  template <class V>
  Vector gradient(const V& w) const {
    Vector g(size);
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j < size; ++j) g[i] += a[i * size + j] * static_cast<double>(w[j]);
    }
    return g;
  }

  size_t size;
  Vector a, start;
};

double inner(const Vector& x, const Vector& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// The rule on the quadratic: weights, and steps with any gradient.
struct Course {
  Course(const spec::OptimizerOptions& o, const Quadratic& f) : layout(o) {
    layout.add("w", {static_cast<int64_t>(f.size)}, false);
    weights.resize(static_cast<size_t>(layout.total_size()));
    std::ranges::copy(f.start, weights.begin());
    optimizer = make_optimizer(o, layout);
    hyper = Hyper::of(o);
  }

  void step(const Vector& gradient, double lr, double loss = 1) {
    std::vector<float> g(weights.size());
    std::ranges::copy(gradient, g.begin());
    hyper.lr = lr;
    StepInput in{.weights = weights, .gradient = g, .hyper = hyper};
    in.loss = loss;
    optimizer->step(in);
  }
  Vector state(std::string_view name) {
    for (const auto& s : optimizer->state()) {
      if (s.name == name) return {s.values.begin(), s.values.end()};
    }
    return {};
  }
  double scalar(std::string_view name) {
    for (const auto& s : optimizer->scalars()) {
      if (s.name == name) return s.value;
    }
    return NAN;
  }

  ParamLayout layout;
  std::vector<float> weights;
  std::unique_ptr<Optimizer> optimizer;
  Hyper hyper;
};

// With gradients at w0 + mu * m the iterate is the series -eta * sum (mu (I - eta H))^k g, cut off
// after as many terms as there were steps (section 3 of the paper): with mu = 1 it would go to
// -H^-1 g.
TEST(Neumann, TheIterateIsTheTruncatedNeumannSeries) {
  const Quadratic f(12, 0.2);
  spec::OptimizerOptions o{.name = "neumann", .momentum = 0.95, .weight_decay = 0};
  o.neumann.alpha = o.neumann.beta = 0;
  o.neumann.warmup_epochs = 0;
  o.neumann.mu_start = 0.95;  // so mu is 0.95 throughout
  Course run(o, f);
  const double eta = 0.5, mu = 0.95;
  const Vector g0 = f.gradient(f.start);
  Vector term = g0, series(f.size);
  for (int k = 0; k < 60; ++k) {
    Vector at = f.start;
    const Vector m = run.state("m");
    for (size_t i = 0; i < f.size; ++i) at[i] += mu * m[i];
    run.step(f.gradient(at), eta);
    for (size_t i = 0; i < f.size; ++i) series[i] -= eta * term[i];
    const Vector moved = f.gradient(term);
    for (size_t i = 0; i < f.size; ++i) term[i] = mu * (term[i] - eta * moved[i]);
    const Vector iterate = run.state("m");
    for (size_t i = 0; i < f.size; ++i) ASSERT_NEAR(iterate[i], series[i], 2e-6) << k;
  }
  // The limit, by its equation: (I - mu (I - eta H)) m = -eta g.
  const Vector m = run.state("m"), hm = f.gradient(m);
  for (size_t i = 0; i < f.size; ++i) {
    EXPECT_NEAR((1 - mu) * m[i] + mu * eta * hm[i], -eta * g0[i], 1e-4);
  }
}

TEST(Neumann, FindsTheMinimumAndEvaluatesTheWeightsWithoutTheirDisplacement) {
  const Quadratic f(12, 0.2);
  spec::OptimizerOptions o{.name = "neumann", .momentum = 0.9, .weight_decay = 0};
  o.neumann.warmup_epochs = 0;
  o.neumann.beta = 0;
  Course run(o, f);
  std::vector<float> meant(run.weights.size());
  for (int k = 0; k < 40; ++k) run.step(f.gradient(run.weights), 0.5);
  run.optimizer->evaluation_weights({run.weights}, {0, 1}, meant);
  const Vector m = run.state("m");
  for (size_t i = 0; i < f.size; ++i) {
    EXPECT_NEAR(meant[i], run.weights[i] - run.scalar("mu") * m[i], 1e-7);
  }
  for (int k = 0; k < 400; ++k) run.step(f.gradient(run.weights), 0.5);
  run.optimizer->evaluation_weights({run.weights}, {0, 1}, meant);
  for (size_t i = 0; i < f.size; ++i) EXPECT_NEAR(meant[i], 0, 1e-3);
}

// Without preconditioner, at the exact step sizes, the directions are those of linear conjugate
// gradients (Hestenes and Stiefel, 1952), which find the minimum in as many steps as there are
// dimensions.
// After a small step r is tiny, and beta / r^2 has no bound.
TEST(Neumann, TheRepulsionAtMostDoublesATinyDistance) {
  const Quadratic f(40, 0.1);
  for (const double lr : {1e-5, 1e-8, 1e-12}) {
    spec::OptimizerOptions o;
    o.name = "neumann";
    o.weight_decay = 0;
    o.neumann.warmup_epochs = 0;
    Course course(o, f);
    Vector before(course.weights.begin(), course.weights.end());
    double longest = 0;
    for (int step = 0; step < 6; ++step) {
      const Vector g = f.gradient(course.weights);
      course.step(g, lr);
      for (size_t i = 0; i < f.size; ++i) {
        ASSERT_TRUE(std::isfinite(course.weights[i])) << lr << " " << step;
        longest = std::max(longest, std::fabs(course.weights[i] - before[i]));
      }
    }
    EXPECT_LT(longest, 1e4 * lr + 1e-5) << lr;
  }
}

// A log-likelihood may be below zero: -1 to -2 is no rise.
TEST(Nlcg, TheLineSearchKnowsLossesBelowZero) {
  const auto step_after = [](double first, double second) {
    const Quadratic f(8, 0.1);
    spec::OptimizerOptions o;
    o.name = "nlcg";
    o.weight_decay = 0;
    o.nlcg.line_search = "online";
    Course course(o, f);
    course.step(f.gradient(course.weights), 1e-3, first);
    course.step(f.gradient(course.weights), 1e-3, second);
    return course.scalar("step_size");
  };
  EXPECT_EQ(step_after(2, 1), 1);
  EXPECT_EQ(step_after(-1, -2), 1);
  EXPECT_EQ(step_after(0, 0), 1);
  EXPECT_LT(step_after(1, 2), 1);
  EXPECT_LT(step_after(-2, -1), 1);
}

TEST(Nlcg, WithExactStepsIsLinearConjugateGradients) {
  for (const char* update : {"fletcher_reeves", "polak_ribiere"}) {
    const Quadratic f(8, 0.3);
    spec::OptimizerOptions o{.name = "nlcg", .weight_decay = 0};
    o.nlcg.update = update;
    o.nlcg.preconditioner = o.nlcg.line_search = "none";
    Course run(o, f);
    Vector x = f.start, r = f.gradient(x);
    for (double& e : r) e = -e;
    const double start = std::sqrt(inner(r, r));
    Vector d = r;
    for (int k = 0; k < 8; ++k) {
      const Vector ad = f.gradient(d);
      const double alpha = inner(r, r) / inner(d, ad);
      run.step(f.gradient(run.weights), alpha);
      const double before = inner(r, r);
      for (size_t i = 0; i < f.size; ++i) {
        x[i] += alpha * d[i];
        r[i] -= alpha * ad[i];
      }
      const double beta = inner(r, r) / before;
      ASSERT_LE(beta, 1) << "the rule bounds beta; choose another matrix";
      for (size_t i = 0; i < f.size; ++i) d[i] = r[i] + beta * d[i];
      for (size_t i = 0; i < f.size; ++i) {
        EXPECT_NEAR(run.weights[i], x[i], 1e-5) << update << " step " << k;
      }
    }
    const Vector end = f.gradient(run.weights);
    EXPECT_LE(std::sqrt(inner(end, end)), 1e-5 * start);
  }
}

// The preconditioner divides by small curvatures, so this compares along real gradients, and less
// tightly than other rules.
TEST(Nlcg, WithThePreconditionerFollowsItsDoublePrecisionTwin) {
  for (const char* update : {"fletcher_reeves", "polak_ribiere"}) {
    for (const char* search : {"step", "online", "none"}) {
      const Quadratic f(50, 0.3);
      spec::OptimizerOptions o{.name = "nlcg", .weight_decay = 0.01};
      o.nlcg.update = update;
      o.nlcg.line_search = search;
      Course run(o, f);
      testing::Buffers buffers(run.layout);
      buffers.weights = run.weights;
      testing::Twin twin(o, buffers);
      for (int k = 0; k < 25; ++k) {
        const Vector g = f.gradient(run.weights);
        const double loss = 2 + std::sin(k);
        std::vector<float> gradient(run.weights.size());
        std::ranges::copy(g, gradient.begin());
        run.step(g, 0.3, loss);
        StepInput in{.weights = run.weights, .gradient = gradient, .hyper = run.hyper};
        in.loss = loss;
        twin.step(in);
      }
      for (size_t i = 0; i < f.size; ++i) {
        EXPECT_NEAR(run.weights[i], twin.w[i], 1e-4) << update << " " << search;
      }
      EXPECT_GT(run.scalar("step_size"), 0);
    }
  }
}

// A rise of the loss shortens steps and takes a part of the last one back.
TEST(Nlcg, TheLineSearchTakesBackWhatWentWrong) {
  const Quadratic f(6, 0.3);
  spec::OptimizerOptions o{.name = "nlcg", .weight_decay = 0};
  o.nlcg.preconditioner = "none";
  o.nlcg.line_search = "online";
  Course run(o, f);
  run.step(f.gradient(run.weights), 0.1, 1);
  EXPECT_EQ(run.scalar("step_size"), 1);
  const Vector d_old = run.state("direction");
  const std::vector<float> before = run.weights;
  run.step(f.gradient(run.weights), 0.1, 3);  // its mean is 1.6: 3 is 87 % above
  EXPECT_EQ(run.scalar("step_size"), 0.5);
  const Vector d = run.state("direction");
  for (size_t i = 0; i < f.size; ++i) {
    EXPECT_NEAR(run.weights[i], before[i] + 0.1 * (0.1 * 0.5 * d[i]) - 0.9 * 0.1 * d_old[i], 1e-6);
  }
  run.step(f.gradient(run.weights), 0.1, 0.5);
  EXPECT_DOUBLE_EQ(run.scalar("step_size"), 0.51);
}

}  // namespace
}  // namespace ductile::optim
