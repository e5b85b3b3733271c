#include "ductile/optim/optimizer.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>
#include <omp.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/optim/elementwise.h"

namespace ductile::optim {
namespace {

const std::vector<std::string> kRules = optimizers().names();

ParamLayout example_layout() {
  ParamLayout layout;
  layout.add("a.weight", 35'000, 4, false);
  layout.add("a.bias", 5, 1, false);
  layout.add("norm.weight", 17, 1, true);
  layout.add("none.weight", 0, 2, false);
  layout.add("zero.weight", 40, 2, false);  // stays 0 under LARS's and LAMB's zero-norm rule
  layout.add("b.weight", 3'000, 2, false);
  return layout;
}

spec::OptimizerOptions options_of(const std::string& name) {
  spec::OptimizerOptions o{.name = name, .weight_decay = 0.01};
  if (name == "lars") o.lars.trust_coefficient = 0.1;
  return o;
}

// Weights, gradient and the optional outputs of one model, filled from a seed.
struct Buffers {
  explicit Buffers(const ParamLayout& layout, uint64_t seed = 1)
      : layout(layout),
        weights(static_cast<size_t>(layout.total_size())),
        gradient(weights.size()),
        half(weights.size()),
        ema(weights.size()) {
    Rng rng(seed);
    for (const Segment& s : layout.segments()) {
      if (s.name == "zero.weight") continue;
      for (int64_t i = 0; i < s.size; ++i) at(weights, s, i) = 0.2F * rng.normal();
    }
    ema = weights;
  }

  static float& at(std::vector<float>& v, const Segment& s, int64_t i) {
    return v[static_cast<size_t>(s.offset + i)];
  }

  void draw_gradient(uint64_t step) {
    Rng rng(99, step);
    for (const Segment& s : layout.segments()) {
      for (int64_t i = 0; i < s.size; ++i) at(gradient, s, i) = 0.3F * (rng.uniform() - 0.5F);
    }
  }

  StepInput input(double lr) {
    hyper.lr = lr;
    return {.weights = weights, .gradient = gradient, .hyper = hyper, .gradient_scale = 0.5F};
  }
  StepInput full_input(double lr, DType type = DType::bf16) {
    StepInput in = input(lr);
    in.half_weights = half;
    in.half = type;
    in.ema = ema;
    in.ema_decay = 0.75F;
    return in;
  }

  ParamLayout layout;
  std::vector<float> weights, gradient;
  std::vector<uint16_t> half;
  std::vector<float> ema;
  Hyper hyper = Hyper::of(options_of("sgd"));  // of all rules that options_of() gives
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// The rules as their papers state them: one tensor at a time, all in double.
class Twin {
 public:
  Twin(const spec::OptimizerOptions& o, const Buffers& b)
      : o_(o),
        layout_(b.layout),
        w(b.weights.begin(), b.weights.end()),
        m_(w.size()),
        v_(w.size()) {}

  void step(const std::vector<float>& gradient, double gradient_scale, double lr) {
    beta1_power_ *= o_.adam.beta1;
    beta2_power_ *= o_.adam.beta2;
    for (const Segment& s : layout_.segments()) {
      const size_t begin = static_cast<size_t>(s.offset);
      const size_t size = static_cast<size_t>(s.size);
      std::vector<double> g(size);
      for (size_t i = 0; i < size; ++i) g[i] = gradient[begin + i] * gradient_scale;
      const double wd = s.decay ? o_.weight_decay : 0;
      std::span<double> w_s = std::span(w).subspan(begin, size);
      std::span<double> m = std::span(m_).subspan(begin, size);
      std::span<double> v = std::span(v_).subspan(begin, size);
      if (o_.name == "sgd") sgd(w_s, g, m, wd, lr);
      if (o_.name == "adam" || o_.name == "adamw") adam(w_s, g, m, v, wd, lr);
      if (o_.name == "lars") lars(w_s, g, m, wd, lr, s.decay);
      if (o_.name == "lamb") lamb(w_s, g, m, v, wd, lr, s.decay);
    }
  }

 private:
  static double norm(std::span<const double> x) {
    double squares = 0;
    for (double e : x) squares += e * e;
    return std::sqrt(squares);
  }

  void sgd(std::span<double> w, const std::vector<double>& g, std::span<double> u, double wd,
           double lr) const {
    for (size_t i = 0; i < w.size(); ++i) {
      const double d = g[i] + wd * w[i];
      u[i] = o_.momentum * u[i] + d;
      w[i] -= lr * (o_.sgd.nesterov ? d + o_.momentum * u[i] : u[i]);
    }
  }

  void adam(std::span<double> w, const std::vector<double>& g, std::span<double> m,
            std::span<double> v, double wd, double lr) const {
    for (size_t i = 0; i < w.size(); ++i) {
      const bool decoupled = o_.name == "adamw";
      const double d = g[i] + (decoupled ? 0 : wd * w[i]);
      if (decoupled) w[i] -= lr * wd * w[i];
      w[i] -= lr * direction(m[i], v[i], d);
    }
  }

  double direction(double& m, double& v, double d) const {
    m = o_.adam.beta1 * m + (1 - o_.adam.beta1) * d;
    v = o_.adam.beta2 * v + (1 - o_.adam.beta2) * d * d;
    const double m_hat = m / (1 - beta1_power_);
    const double v_hat = v / (1 - beta2_power_);
    return m_hat / (std::sqrt(v_hat) + o_.adam.eps);
  }

  void lars(std::span<double> w, const std::vector<double>& g, std::span<double> u, double wd,
            double lr, bool scaled) const {
    const double w_norm = norm(w), g_norm = norm(g);
    double trust = 1;
    if (scaled && w_norm > 0 && g_norm > 0) {
      trust = o_.lars.trust_coefficient * w_norm / (g_norm + wd * w_norm + o_.lars.eps);
    }
    for (size_t i = 0; i < w.size(); ++i) {
      const double d = g[i] + wd * w[i];
      u[i] = o_.momentum * u[i] + (o_.lars.trust_outside ? d : lr * trust * d);
      w[i] -= o_.lars.trust_outside ? lr * trust * u[i] : u[i];
    }
  }

  void lamb(std::span<double> w, const std::vector<double>& g, std::span<double> m,
            std::span<double> v, double wd, double lr, bool scaled) const {
    std::vector<double> r(w.size());
    for (size_t i = 0; i < w.size(); ++i) r[i] = direction(m[i], v[i], g[i]) + wd * w[i];
    const double w_norm = norm(w), r_norm = norm(r);
    const double ratio = scaled && w_norm > 0 && r_norm > 0 ? w_norm / r_norm : 1;
    for (size_t i = 0; i < w.size(); ++i) w[i] -= lr * ratio * r[i];
  }

  spec::OptimizerOptions o_;
  ParamLayout layout_;
  double beta1_power_ = 1, beta2_power_ = 1;  // beta ^ steps done

 public:
  std::vector<double> w;

 private:
  std::vector<double> m_, v_;
};

double rate_of(const std::string& name) { return name.starts_with("a") ? 0.01 : 0.05; }

void expect_follows_twin(const spec::OptimizerOptions& o) {
  Buffers b(example_layout());
  b.hyper = Hyper::of(o);
  Twin twin(o, b);
  const auto optimizer = make_optimizer(o, b.layout);
  for (uint64_t step = 0; step < 100; ++step) {
    b.draw_gradient(step);
    const double lr = rate_of(o.name) * (1 - static_cast<double>(step) / 200);
    optimizer->step(b.input(lr));
    twin.step(b.gradient, 0.5, lr);
  }
  EXPECT_EQ(optimizer->num_steps(), 100);
  for (const Segment& s : b.layout.segments()) {
    double squares = 0, error = 0;
    for (int64_t i = 0; i < s.size; ++i) {
      const size_t at = static_cast<size_t>(s.offset + i);
      squares += twin.w[at] * twin.w[at];
      error += std::pow(twin.w[at] - b.weights[at], 2);
    }
    EXPECT_LE(std::sqrt(error), 1e-6 * std::sqrt(squares)) << o.name << " " << s.name;
  }
}

TEST(Optimizer, EveryRuleFollowsItsDoublePrecisionTwin) {
  for (const std::string& name : kRules) expect_follows_twin(options_of(name));
  spec::OptimizerOptions o = options_of("sgd");
  o.sgd.nesterov = true;
  expect_follows_twin(o);
  o.sgd.nesterov = false;
  o.momentum = 0;
  expect_follows_twin(o);
  o = options_of("lars");
  o.lars.trust_outside = true;
  expect_follows_twin(o);
  for (std::string name : kRules) {
    o = options_of(name);
    o.no_decay = {};
    o.weight_decay = 0;
    expect_follows_twin(o);
  }
}

TEST(Optimizer, LarsWithoutAGradientStillDecaysPlainly) {
  Buffers b(example_layout());
  Twin twin(options_of("lars"), b);
  const auto optimizer = make_optimizer(options_of("lars"), b.layout);
  optimizer->step(b.input(0.1));
  twin.step(b.gradient, 0.5, 0.1);
  for (size_t i = 0; i < b.weights.size(); ++i) ASSERT_NEAR(b.weights[i], twin.w[i], 1e-7);
}

// Everything a run leaves behind: weights, half copy, average and state.
std::vector<float> trained(const std::string& name, int threads, DType half = DType::bf16) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  Buffers b(example_layout());
  const auto optimizer = make_optimizer(options_of(name), b.layout);
  for (uint64_t step = 0; step < 5; ++step) {
    b.draw_gradient(step);
    optimizer->step(b.full_input(rate_of(name), half));
  }
  omp_set_num_threads(before);
  std::vector<float> out = b.weights;
  out.insert(out.end(), b.ema.begin(), b.ema.end());
  for (uint16_t h : b.half) out.push_back(h);
  for (const auto& buffer : optimizer->state()) {
    out.insert(out.end(), buffer.values.begin(), buffer.values.end());
  }
  return out;
}

TEST(Optimizer, AnyThreadCountGivesTheSameBits) {
  for (const std::string& name : kRules) {
    const std::vector<float> expected = trained(name, 1);
    for (int threads : {2, 4}) EXPECT_TRUE(same_bits(trained(name, threads), expected)) << name;
  }
}

TEST(Optimizer, HalfWeightsAndAverageAreThoseOfSeparatePasses) {
  for (const std::string& name : kRules) {
    for (DType type : {DType::bf16, DType::f16}) {
      Buffers fused(example_layout()), plain(example_layout());
      const auto a = make_optimizer(options_of(name), fused.layout);
      const auto b = make_optimizer(options_of(name), plain.layout);
      for (uint64_t step = 0; step < 3; ++step) {
        fused.draw_gradient(step);
        plain.draw_gradient(step);
        a->step(fused.full_input(0.01, type));
        b->step(plain.input(0.01));
        (type == DType::bf16 ? to_bf16 : to_f16)(plain.half, plain.weights);
        for (size_t i = 0; i < plain.ema.size(); ++i) {
          plain.ema[i] += 0.25F * (plain.weights[i] - plain.ema[i]);
        }
      }
      EXPECT_TRUE(same_bits(fused.weights, plain.weights)) << name;
      EXPECT_EQ(fused.half, plain.half) << name;
      EXPECT_TRUE(same_bits(fused.ema, plain.ema)) << name;
    }
  }
}

TEST(Optimizer, GapsStayZeroEvenWithoutEps) {
  for (const std::string& name : kRules) {
    spec::OptimizerOptions o = options_of(name);
    o.adam.eps = o.lars.eps = 0;
    Buffers b(example_layout());
    b.hyper = Hyper::of(o);
    const auto optimizer = make_optimizer(o, b.layout);
    std::vector<bool> used(b.weights.size());
    for (const Segment& s : b.layout.segments()) {
      for (int64_t i = 0; i < s.size; ++i) used[static_cast<size_t>(s.offset + i)] = true;
    }
    b.draw_gradient(0);
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) b.gradient[i] = NAN;
    }
    optimizer->step(b.full_input(0.1));
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      ASSERT_EQ(b.weights[i], 0);
      ASSERT_EQ(b.half[i], 0);
      for (const auto& buffer : optimizer->state()) ASSERT_EQ(buffer.values[i], 0) << buffer.name;
    }
  }
}

ParamLayout large_layout() {
  ParamLayout layout;
  layout.add("a.weight", 100'003, 4, false);
  layout.add("a.bias", 5, 1, false);
  layout.add("norm.weight", 17, 1, true);
  layout.add("zero.weight", 40, 2, false);
  layout.add("b.weight", 73'001, 2, false);
  return layout;
}

std::vector<Optimizer::BlockRange> random_spread(int64_t num_blocks, int64_t num_workers) {
  std::vector<int64_t> cut{0, num_blocks};
  while (static_cast<int64_t>(cut.size()) <= num_workers) {
    cut.push_back(*rc::gen::inRange<int64_t>(0, num_blocks + 1));
  }
  std::sort(cut.begin(), cut.end());
  std::vector<Optimizer::BlockRange> ranges;
  for (size_t i = 0; i + 1 < cut.size(); ++i) ranges.push_back({cut[i], cut[i + 1]});
  return ranges;
}

// Workers that hold ranges of blocks, exchange norm sums, together make the step of one, and now
// and then give ranges to each other.
RC_GTEST_PROP(Optimizer, ShardedUpdateHasTheBitsOfTheWhole, (uint64_t seed)) {
  const std::string name = *rc::gen::elementOf(kRules);
  const int64_t num_workers = *rc::gen::inRange(1, 9);
  Buffers whole(large_layout(), seed);
  Buffers shared(large_layout(), seed);  // each worker writes its own range only
  const auto expected = make_optimizer(options_of(name), whole.layout);
  const int64_t num_blocks = expected->num_blocks();
  std::vector<std::unique_ptr<Optimizer>> workers;
  auto ranges = random_spread(num_blocks, num_workers);
  for (const auto& range : ranges) {
    workers.push_back(make_optimizer(options_of(name), shared.layout));
    workers.back()->hold({range});
  }
  for (uint64_t step = 0; step < 4; ++step) {
    whole.draw_gradient(step);
    shared.draw_gradient(step);
    expected->step(whole.full_input(0.02));
    const StepInput in = shared.full_input(0.02);
    const std::vector<float> before = shared.weights;
    for (size_t i = 0; i < workers.size(); ++i) workers[i]->prepare(in, ranges[i]);
    RC_ASSERT(shared.weights == before);
    for (size_t from = 0; from < workers.size(); ++from) {
      const auto sums = workers[from]->norm_sums_of(ranges[from]);
      for (auto& to : workers) {
        const auto target = to->norm_sums_of(ranges[from]);
        std::copy(sums.begin(), sums.end(), target.begin());
      }
    }
    size_t bytes = 0;
    for (size_t i = 0; i < workers.size(); ++i) {
      workers[i]->apply(in, ranges[i]);
      workers[i]->finish();
      bytes += workers[i]->state_bytes();
    }
    RC_ASSERT(bytes == expected->state_bytes());
    // Another spread: what is new to a worker comes from who held it.
    const auto next = random_spread(num_blocks, num_workers);
    for (size_t to = 0; to < workers.size(); ++to) {
      workers[to]->hold({ranges[to], next[to]});
      for (size_t from = 0; from < workers.size(); ++from) {
        const Optimizer::BlockRange common{std::max(next[to].begin, ranges[from].begin),
                                           std::min(next[to].end, ranges[from].end)};
        if (from == to || common.begin >= common.end) continue;
        const auto sources = workers[from]->state(common);
        const auto targets = workers[to]->state(common);
        for (size_t s = 0; s < sources.size(); ++s) {
          std::ranges::copy(sources[s].values, targets[s].values.begin());
        }
      }
    }
    ranges = next;
    for (size_t i = 0; i < workers.size(); ++i) workers[i]->hold({ranges[i]});
  }
  RC_ASSERT(same_bits(whole.weights, shared.weights));
  RC_ASSERT(same_bits(whole.ema, shared.ema));
  RC_ASSERT(whole.half == shared.half);
}

TEST(Optimizer, StateTakesMemoryForTheBlocksThatAreHeldAlone) {
  for (const std::string& name : kRules) {
    const auto optimizer = make_optimizer(options_of(name), large_layout());
    EXPECT_TRUE(optimizer->holds_all());
    const size_t whole = optimizer->state_bytes();
    optimizer->hold({{2, 3}, {7, 8}, {3, 4}});
    EXPECT_EQ(optimizer->held(), (std::vector<Optimizer::BlockRange>{{2, 4}, {7, 8}}));
    EXPECT_EQ(optimizer->state_bytes(),
              3 * Optimizer::kBlock * sizeof(float) * optimizer->state_names().size());
    EXPECT_THROW((void)optimizer->state({4, 5}), Error);
    EXPECT_LT(optimizer->state_bytes(), whole / 3);
  }
}

TEST(Optimizer, GoesOnWithTheSameBitsFromSavedState) {
  for (const std::string& name : kRules) {
    Buffers whole(example_layout()), cut(example_layout());
    const auto a = make_optimizer(options_of(name), whole.layout);
    auto b = make_optimizer(options_of(name), cut.layout);
    for (uint64_t step = 0; step < 6; ++step) {
      whole.draw_gradient(step);
      cut.draw_gradient(step);
      a->step(whole.input(0.01));
      b->step(cut.input(0.01));
      auto restored = make_optimizer(options_of(name), cut.layout);
      const auto saved = b->state();
      const auto target = restored->state();
      ASSERT_EQ(saved.size(), target.size());
      for (size_t i = 0; i < saved.size(); ++i) {
        EXPECT_EQ(saved[i].name, target[i].name);
        std::copy(saved[i].values.begin(), saved[i].values.end(), target[i].values.begin());
      }
      restored->set_num_steps(b->num_steps());
      b = std::move(restored);
    }
    EXPECT_TRUE(same_bits(whole.weights, cut.weights)) << name;
  }
}

TEST(Optimizer, AnEmptyModelTakesSteps) {
  for (const std::string& name : kRules) {
    const auto optimizer = make_optimizer(options_of(name), ParamLayout());
    optimizer->step({});
    EXPECT_EQ(optimizer->num_steps(), 1);
  }
}

TEST(Optimizer, RefusesWrongNamesOptionsAndLengths) {
  const ParamLayout layout = example_layout();
  EXPECT_THROW(make_optimizer({.name = "sdg"}, layout), Error);
  EXPECT_THROW(make_optimizer({.name = "sgd", .momentum = 0, .sgd = {.nesterov = true}}, layout),
               Error);
  const auto optimizer = make_optimizer({}, layout);
  Buffers b(layout);
  StepInput in = b.input(0.1);
  in.gradient = in.gradient.subspan(1);
  EXPECT_THROW(optimizer->step(in), Error);
  in = b.full_input(0.1);
  in.half = DType::f32;
  EXPECT_THROW(optimizer->step(in), Error);
  EXPECT_THROW(optimizer->set_num_steps(-1), Error);
  EXPECT_EQ(optimizer->num_steps(), 0);
}

TEST(Optimizer, AnUnknownRuleIsAnErrorThatNamesTheNearest) {
  try {
    make_optimizer({.name = "adamm"}, example_layout());
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(
        e.what(),
        "optimizer.name = \"adamm\" is not known; did you mean \"adam\"? Allowed: \"sgd\", "
        "\"adam\", \"adamw\", \"lars\", \"lamb\"");
  }
}

}  // namespace
}  // namespace ductile::optim
