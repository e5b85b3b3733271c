// The rules' own sources, compiled once more with double in place of float, follow their twins to
// 1e-10: in fp32 (optimizer_test.cc) rounding would hide a mistake that is smaller than 1e-6. What
// is left to fp32 is rounding, and kernels_test.cc compares that of the instruction sets.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json_fwd.hpp>

#include "ductile/base/aligned_array.h"
#include "ductile/base/dtype.h"
#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/pages.h"
#include "ductile/base/rng.h"
#include "ductile/optim/testing/rule_forms.h"
#include "ductile/spec/job.h"
#include "ductile/spec/name_rules.h"
#include "ductile/spec/optimizers.h"

// In a namespace of their own. All that they include from elsewhere stands above.
#define float double
#define optim optim_double

#include "ductile/optim/adam.cc"
#include "ductile/optim/ademamix.cc"
#include "ductile/optim/flat_optimizer.cc"
#include "ductile/optim/hyper.cc"
#include "ductile/optim/kernels_body_impl.h"
#include "ductile/optim/lamb.cc"
#include "ductile/optim/lars.cc"
#include "ductile/optim/muon.cc"
#include "ductile/optim/nadamw.cc"
#include "ductile/optim/neumann.cc"
#include "ductile/optim/newton_schulz.cc"
#include "ductile/optim/nlcg.cc"
#include "ductile/optim/optimizer.cc"
#include "ductile/optim/param_layout.cc"
#include "ductile/optim/schedule_free.cc"
#include "ductile/optim/sgd.cc"
#include "ductile/optim/testing/optimizer_twin.cc"

#undef float
#undef optim

namespace ductile::optim_double {

// In place of kernels.cc: the loops as they stand, without conversions to 16 bits.
const kernels::Table& kernels::best() {
  static constexpr Table kTable{.sgd = body::sgd,
                                .momentum = body::momentum,
                                .nesterov = body::nesterov,
                                .adam = body::adam,
                                .lamb_direction = body::lamb_direction,
                                .lamb_apply = body::lamb_apply,
                                .nadam = body::nadam,
                                .ademamix = body::ademamix,
                                .schedule_free = body::schedule_free,
                                .neumann = body::neumann,
                                .bfgs = body::bfgs,
                                .divide = body::divide,
                                .blend = body::blend,
                                .multiply = body::multiply,
                                .add_scaled = body::add_scaled,
                                .tile = body::tile,
                                .ema = body::ema,
                                .add = body::add,
                                .sum_squares = body::sum_squares,
                                .dot = body::dot};
  return kTable;
}

namespace {

static_assert(std::is_same_v<decltype(StepInput::gradient_scale), double>);
static_assert(std::is_same_v<decltype(Optimizer::StateBuffer::values), std::span<double>>);

using optim::testing::options_of;
using testing::Buffers;
using testing::Twin;

constexpr double kBound = 1e-10;

// Each tensor within kBound of its norm: the trained weights, and those that the rule means.
void expect_equal(const Buffers& b, Optimizer& optimizer, const Twin& twin,
                  const std::string& rule) {
  std::vector<double> meant(b.weights.size());
  optimizer.evaluation_weights({b.weights}, {0, optimizer.num_blocks()}, meant);
  const testing::Vector twin_meant = twin.meant();
  for (const Segment& s : b.layout.segments()) {
    double squares = 0, error = 0, meant_error = 0;
    for (int64_t i = 0; i < s.size; ++i) {
      const auto at = static_cast<size_t>(s.offset + i);
      ASSERT_TRUE(std::isfinite(twin.w[at])) << rule << " " << s.name;
      squares += twin.w[at] * twin.w[at];
      error += std::pow(twin.w[at] - b.weights[at], 2);
      meant_error += std::pow(twin_meant[at] - meant[at], 2);
    }
    EXPECT_LE(std::sqrt(error), kBound * std::sqrt(squares)) << rule << " " << s.name;
    EXPECT_LE(std::sqrt(meant_error), kBound * std::sqrt(squares)) << rule << " " << s.name;
  }
}

// A run with weights, gradients and hyperparameters drawn by the seed. With the preconditioner of
// NLCG, which divides by curvatures, the gradients are those of a quadratic at the weights.
void expect_equals_twin(const spec::OptimizerOptions& o, uint64_t seed) {
  Rng rng(seed);
  Buffers b(testing::example_layout(o), seed);
  b.hyper = Hyper::of(o);
  b.hyper.weight_decay *= rng.uniform(0.5, 2);
  b.hyper.momentum *= rng.uniform(0.8, 1.05);
  b.hyper.beta1 *= rng.uniform(0.8, 1.05);
  b.hyper.beta2 *= rng.uniform(0.95, 1);
  const double lr = (o.name.starts_with("a") ? 0.01 : 0.05) * rng.uniform(0.5, 1.5);
  const bool is_quadratic = o.name == "nlcg" && o.nlcg.preconditioner != "none";
  std::vector<double> curvature(b.weights.size());
  for (double& c : curvature) c = rng.uniform(0.3, 1);
  Twin twin(o, b);
  const auto optimizer = make_optimizer(o, b.layout);
  // Muon's twin is slow, and a quadratic comes near its minimum, 0.
  const uint64_t steps = o.name == "muon" ? 10 : is_quadratic ? 25 : 100;
  for (uint64_t step = 0; step < steps; ++step) {
    b.draw_gradient(1000 * seed + step);
    for (size_t i = 0; is_quadratic && i < curvature.size(); ++i) {
      b.gradient[i] = curvature[i] * b.weights[i];
    }
    const double rate = lr * (1 - static_cast<double>(step) / 200);
    const StepInput in = testing::moved(b.input(rate), step);
    optimizer->step(in);
    twin.step(in);
  }
  expect_equal(b, *optimizer, twin, o.name);
}

TEST(DoublePrecision, EveryRuleEqualsItsTwinOnRandomProblems) {
  for (const OptimizerEntry& rule : optimizers()) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      spec::OptimizerOptions o = options_of(std::string(rule.name));
      expect_equals_twin(o, seed);
      o.no_decay = {};
      o.weight_decay = 0;
      expect_equals_twin(o, seed);
    }
  }
}

TEST(DoublePrecision, EveryFormOfARuleEqualsTheTwin) {
  for (const spec::OptimizerOptions& o : optim::testing::rule_forms()) expect_equals_twin(o, 4);
}

TEST(DoublePrecision, NlcgEqualsItsTwinForEveryUpdateAndLineSearch) {
  for (const char* update : {"fletcher_reeves", "polak_ribiere"}) {
    for (const char* search : {"step", "online", "none"}) {
      spec::OptimizerOptions o = options_of("nlcg");
      o.nlcg.update = update;
      o.nlcg.line_search = search;
      expect_equals_twin(o, 5);
    }
  }
}

TEST(DoublePrecision, FactorsOnTheRateAndFrozenParametersChangeNothingInThat) {
  for (const char* name : {"sgd", "adam", "adamw", "nadamw", "ademamix", "muon"}) {
    spec::OptimizerOptions o = options_of(name);
    o.lr_factors = {"norm:0.3", "b.weight:2", "bias:8", "weight:0.5"};
    o.no_decay = {"norm"};
    o.freeze = {"embed.weight", "a.bias:1.5"};
    expect_equals_twin(o, 6);
  }
}

}  // namespace
}  // namespace ductile::optim_double
