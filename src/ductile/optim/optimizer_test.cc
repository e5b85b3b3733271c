#include "ductile/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <malloc.h>
#include <omp.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/optim/elementwise.h"
#include "ductile/optim/testing/optimizer_twin.h"
#include "ductile/optim/testing/rule_forms.h"

namespace ductile::optim {
namespace {

const std::vector<std::string> kRules = optimizers().names();

using testing::example_layout;
using testing::moved;
using testing::options_of;
using testing::Twin;

ParamLayout large_layout(const spec::OptimizerOptions& o = {}) {
  ParamLayout layout(o);
  layout.add("a.weight", {61, 1657}, false);
  layout.add("a.bias", {5}, false);
  layout.add("norm.weight", {17}, true);
  layout.add("zero.weight", {5, 8}, false);
  layout.add("embed.weight", {7, 2000}, false);
  layout.add("b.weight", {73, 1001}, false);
  return layout;
}

struct Buffers : testing::Buffers {
  Buffers(const spec::OptimizerOptions& o, ParamLayout (*make)(const spec::OptimizerOptions&),
          uint64_t seed = 1)
      : testing::Buffers(make(o), seed) {
    hyper = Hyper::of(o);
  }
  explicit Buffers(const spec::OptimizerOptions& o) : Buffers(o, example_layout) {}
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// State and scalars of `from` become those of `to`.
void copy_state(Optimizer& from, Optimizer& to) {
  const auto saved = from.state(), target = to.state();
  ASSERT_EQ(saved.size(), target.size());
  for (size_t i = 0; i < saved.size(); ++i) {
    EXPECT_EQ(saved[i].name, target[i].name);
    std::ranges::copy(saved[i].values, target[i].values.begin());
  }
  std::ranges::copy(from.scalars(), to.scalars().begin());
  to.set_num_steps(from.num_steps());
}

double rate_of(const std::string& name) { return name.starts_with("a") ? 0.01 : 0.05; }

// fp32 against double: each tensor within `bound` of its norm. Muon divides small singular values
// out, so rounding counts for more there.
void expect_follows_twin(const spec::OptimizerOptions& o, double bound = 1e-6) {
  Buffers b(o);
  Twin twin(o, b);
  const auto optimizer = make_optimizer(o, b.layout);
  const uint64_t steps = o.name == "muon" ? 25 : 100;  // its twin is slow
  for (uint64_t step = 0; step < steps; ++step) {
    b.draw_gradient(step);
    const StepInput in =
        moved(b.input(rate_of(o.name) * (1 - static_cast<double>(step) / 200)), step);
    optimizer->step(in);
    twin.step(in);
  }
  EXPECT_EQ(optimizer->num_steps(), static_cast<int64_t>(steps));
  std::vector<float> meant(b.weights.size());
  optimizer->evaluation_weights({b.weights}, {0, optimizer->num_blocks()}, meant);
  const testing::Vector twin_meant = twin.meant();
  for (const Segment& s : b.layout.segments()) {
    double squares = 0, error = 0, meant_error = 0;
    for (int64_t i = 0; i < s.size; ++i) {
      const size_t at = static_cast<size_t>(s.offset + i);
      squares += twin.w[at] * twin.w[at];
      error += std::pow(twin.w[at] - b.weights[at], 2);
      meant_error += std::pow(twin_meant[at] - meant[at], 2);
    }
    EXPECT_LE(std::sqrt(error), bound * std::sqrt(squares)) << o.name << " " << s.name;
    EXPECT_LE(std::sqrt(meant_error), bound * std::sqrt(squares)) << o.name << " " << s.name;
  }
}

double bound_of(const std::string& name) {
  if (name == "ademamix") return 5e-6;  // its steps are up to 1 + alpha times as long
  return name == "muon" ? 1e-4 : 1e-6;
}

TEST(Optimizer, EveryRuleFollowsItsDoublePrecisionTwin) {
  for (const std::string& name : kRules) {
    if (name == "nlcg") continue;  // below
    expect_follows_twin(options_of(name), bound_of(name));
    spec::OptimizerOptions o = options_of(name);
    o.no_decay = {};
    o.weight_decay = 0;
    expect_follows_twin(o, bound_of(name));
  }
}

TEST(Optimizer, EveryFormOfARuleFollowsTheTwin) {
  for (const spec::OptimizerOptions& o : testing::rule_forms()) {
    expect_follows_twin(o, bound_of(o.name));
  }
}

TEST(Optimizer, FactorsOnTheRateFollowTheTwin) {
  for (const char* name : {"sgd", "adam", "adamw", "nadamw", "ademamix", "muon"}) {
    spec::OptimizerOptions o = options_of(name);
    o.lr_factors = {"norm:0.3", "b.weight:2", "bias:8", "weight:0.5"};
    o.no_decay = {"norm"};
    expect_follows_twin(o, 2 * bound_of(name));
    if (o.name != "muon") continue;
    o.muon.rest = "sgd";
    expect_follows_twin(o, bound_of(name));
  }
}

bool evaluates_its_own(const std::string& rule) {
  return rule == "schedule_free" || rule == "neumann";
}

TEST(Optimizer, FrozenParametersFollowTheTwinAndStayToTheBit) {
  for (const std::string& name : kRules) {
    spec::OptimizerOptions o = options_of(name);
    o.freeze = {"b.weight", "a.bias:1.5"};
    o.no_decay = {};
    if (evaluates_its_own(name)) {
      EXPECT_THROW(make_optimizer(o, example_layout(o)), Error) << name;
      continue;
    }
    if (name != "nlcg") expect_follows_twin(o, bound_of(name));  // its twin has one flat vector
    Buffers b(o);
    const auto optimizer = make_optimizer(o, b.layout);
    const auto values_of = [&](const char* parameter) {
      const Segment& s = b.layout.segment(parameter);
      return std::vector<float>(b.weights.begin() + s.offset,
                                b.weights.begin() + s.offset + s.size);
    };
    const std::vector<float> matrix = values_of("b.weight"), bias = values_of("a.bias");
    std::vector<float> at_15;
    for (uint64_t step = 0; step < 20; ++step) {
      b.draw_gradient(step);
      optimizer->step(moved(b.full_input(0.01), step));
      if (step == 14) at_15 = values_of("a.bias");
    }
    EXPECT_TRUE(same_bits(values_of("b.weight"), matrix)) << name;
    EXPECT_FALSE(same_bits(at_15, bias)) << name;
    EXPECT_TRUE(same_bits(values_of("a.bias"), at_15)) << name;
    const Segment& s = b.layout.segment("b.weight");
    EXPECT_TRUE(
        same_bits(std::span(b.ema).subspan(static_cast<size_t>(s.offset), matrix.size()), matrix))
        << name;
  }
}

TEST(Optimizer, TheAverageOfAFrozenParameterGoesOn) {
  spec::OptimizerOptions o = options_of("sgd");
  o.freeze = {"b.weight:0.5"};
  Buffers b(o);
  const auto optimizer = make_optimizer(o, b.layout);
  for (uint64_t step = 0; step < 60; ++step) {
    b.draw_gradient(step);
    optimizer->step(moved(b.full_input(0.1), step));
  }
  const Segment& s = b.layout.segment("b.weight");
  for (int64_t i = 0; i < s.size; ++i) {
    EXPECT_NEAR(Buffers::at(b.ema, s, i), Buffers::at(b.weights, s, i), 1e-6);
  }
}

// As with PyTorch's parameter groups: what is far from the others' rate is trained as by a rule
// that has this rate for all.
TEST(Optimizer, AFactorOnAdamsRateIsThatRateWhateverTheDecay) {
  spec::OptimizerOptions o = options_of("adam");
  o.weight_decay = 5e-4;
  Buffers plain(o);
  o.lr_factors = {"b.weight:0.001"};
  Buffers b(o);
  const auto optimizer = make_optimizer(o, b.layout), twin = make_optimizer(o, plain.layout);
  for (uint64_t step = 0; step < 30; ++step) {
    b.draw_gradient(step);
    plain.draw_gradient(step);
    optimizer->step(moved(b.input(1), step));
    twin->step(moved(plain.input(0.001), step));
  }
  const Segment& s = b.layout.segment("b.weight");
  for (int64_t i = 0; i < s.size; ++i) {
    ASSERT_NEAR(Buffers::at(b.weights, s, i), Buffers::at(plain.weights, s, i), 1e-6) << i;
  }
}

TEST(Optimizer, LarsWithoutAGradientStillDecaysPlainly) {
  Buffers b(options_of("lars"));
  Twin twin(options_of("lars"), b);
  const auto optimizer = make_optimizer(options_of("lars"), b.layout);
  optimizer->step(b.input(0.1));
  twin.step(b.input(0.1));
  for (size_t i = 0; i < b.weights.size(); ++i) ASSERT_NEAR(b.weights[i], twin.w[i], 1e-7);
}

// A learning rate of 0 moves no weight, and no gradient none but by decay and momentum.
TEST(Optimizer, ARateOfZeroAndAGradientOfZeroMoveNothing) {
  for (const std::string& name : kRules) {
    spec::OptimizerOptions o = options_of(name);
    o.weight_decay = 0;
    for (const auto& [still, eps] :
         {std::pair{false, 1e-8}, {true, 1e-8}, {true, 0.0}, {true, 1e-50}}) {
      o.adam.eps = o.muon.eps = eps;  // 1e-50 is 0 in fp32
      Buffers b(o);
      const auto optimizer = make_optimizer(o, b.layout);
      const std::vector<float> before = b.weights;
      for (uint64_t step = 0; step < 30; ++step) {
        if (!still) b.draw_gradient(step);
        optimizer->step(moved(b.input(still ? 0.1 : 0), step));
      }
      // The Neumann regulariser and the interpolation of schedule_free may round.
      for (size_t i = 0; i < before.size(); ++i) {
        ASSERT_NEAR(b.weights[i], before[i], 1e-6 * std::fabs(before[i])) << name << still << eps;
      }
    }
  }
}

// Everything a run leaves behind: weights, half copy, average and state.
std::vector<float> trained(const std::string& name, int threads, DType half = DType::bf16) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  Buffers b(options_of(name));
  const auto optimizer = make_optimizer(options_of(name), b.layout);
  for (uint64_t step = 0; step < 9; ++step) {
    b.draw_gradient(step);
    optimizer->step(moved(b.full_input(rate_of(name), half), step));
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
      Buffers fused(options_of(name)), plain(options_of(name));
      const auto a = make_optimizer(options_of(name), fused.layout);
      const auto b = make_optimizer(options_of(name), plain.layout);
      for (uint64_t step = 0; step < 9; ++step) {
        fused.draw_gradient(step);
        plain.draw_gradient(step);
        a->step(moved(fused.full_input(0.01, type), step));
        b->step(moved(plain.input(0.01), step));
        (type == DType::bf16 ? to_bf16 : to_f16)(plain.half, plain.weights);
        std::vector<float> meant(plain.weights.size());
        b->evaluation_weights({plain.weights}, {0, b->num_blocks()}, meant);
        for (size_t i = 0; i < plain.ema.size(); ++i) {
          plain.ema[i] += 0.25F * (meant[i] - plain.ema[i]);
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
    Buffers b(o);
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

std::vector<Optimizer::BlockRange> random_spread(const Optimizer& optimizer, int64_t num_workers) {
  const int64_t num_blocks = optimizer.num_blocks();
  std::vector<int64_t> cut{0, num_blocks};
  while (static_cast<int64_t>(cut.size()) <= num_workers) {
    cut.push_back(*rc::gen::inRange<int64_t>(0, num_blocks + 1));
    while (!optimizer.may_cut(cut.back())) --cut.back();
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
  Buffers whole(options_of(name), large_layout, seed);
  Buffers shared(options_of(name), large_layout, seed);  // each worker writes its own range only
  const auto expected = make_optimizer(options_of(name), whole.layout);
  std::vector<std::unique_ptr<Optimizer>> workers;
  auto ranges = random_spread(*expected, num_workers);
  for (const auto& range : ranges) {
    workers.push_back(make_optimizer(options_of(name), shared.layout));
    workers.back()->hold({range});
  }
  for (uint64_t step = 0; step < 4; ++step) {
    whole.draw_gradient(step);
    shared.draw_gradient(step);
    const uint64_t at = step * 5;
    expected->step(moved(whole.full_input(0.02), at));
    const StepInput in = moved(shared.full_input(0.02), at);
    const std::vector<float> before = shared.weights;
    for (int round = 0; round < expected->num_rounds(); ++round) {
      for (size_t i = 0; i < workers.size(); ++i) workers[i]->prepare(in, ranges[i], round);
      for (size_t from = 0; from < workers.size(); ++from) {
        const auto sums = workers[from]->norm_sums_of(ranges[from]);
        for (auto& to : workers) {
          const auto target = to->norm_sums_of(ranges[from]);
          std::copy(sums.begin(), sums.end(), target.begin());
        }
      }
    }
    RC_ASSERT(shared.weights == before);
    size_t bytes = 0;
    for (size_t i = 0; i < workers.size(); ++i) {
      workers[i]->apply(in, ranges[i]);
      workers[i]->finish(in);
      bytes += workers[i]->state_bytes();
    }
    RC_ASSERT(bytes == expected->state_bytes());
    // Another spread: what is new to a worker comes from who held it.
    const auto next = random_spread(*expected, num_workers);
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
    if (whole == 0) continue;  // a rule without state
    EXPECT_THROW((void)optimizer->state({4, 5}), Error);
    EXPECT_LT(optimizer->state_bytes(), whole / 3);
  }
}

// The process's own memory that is resident, in bytes.
int64_t resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return 1024 * std::atoll(line.c_str() + 8);
  }
  return 0;
}

// Zero in memory that others have used, and not there before it is written.
TEST(Optimizer, NewStateIsZeroAndTakesNoMemoryYet) {
  ParamLayout layout(options_of("adam"));
  layout.add("a.weight", {4096, 4096}, false);
  const auto size = static_cast<size_t>(layout.total_size());
  for (const bool used_before : {false, true}) {
    if (used_before) {  // as the allocator of a worker keeps it (nn/memory.h)
      mallopt(M_MMAP_THRESHOLD, 1 << 30);
      mallopt(M_TRIM_THRESHOLD, 1 << 30);
      const std::vector<float> used(2 * size, 1.0F);
    }
    const int64_t before = resident();
    const auto optimizer = make_optimizer(options_of("adam"), layout);
    EXPECT_LT(resident() - before, static_cast<int64_t>(size * sizeof(float) / 2));
    EXPECT_EQ(optimizer->state_bytes(), 2 * size * sizeof(float));
    for (const Optimizer::StateBuffer& buffer : optimizer->state())
      EXPECT_TRUE(std::ranges::all_of(buffer.values, [](float x) { return x == 0; }));
    optimizer->hold({{3, 5}});
    for (const Optimizer::StateBuffer& buffer : optimizer->state({3, 5})) {
      EXPECT_TRUE(std::ranges::all_of(buffer.values, [](float x) { return x == 0; }));
      std::ranges::fill(buffer.values, 2.0F);
    }
    optimizer->hold({{0, 5}});
    for (const Optimizer::StateBuffer& buffer : optimizer->state({0, 3}))
      EXPECT_TRUE(std::ranges::all_of(buffer.values, [](float x) { return x == 0; }));
  }
}

TEST(Optimizer, GoesOnWithTheSameBitsFromSavedState) {
  for (const std::string& name : kRules) {
    Buffers whole(options_of(name)), cut(options_of(name));
    const auto a = make_optimizer(options_of(name), whole.layout);
    auto b = make_optimizer(options_of(name), cut.layout);
    for (uint64_t step = 0; step < 50; ++step) {
      whole.draw_gradient(step);
      cut.draw_gradient(step);
      a->step(moved(whole.input(0.01), step));
      b->step(moved(cut.input(0.01), step));
      auto restored = make_optimizer(options_of(name), cut.layout);
      copy_state(*b, *restored);
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
  Buffers b({});
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
    const std::string_view what = e.what();
    EXPECT_TRUE(what.starts_with(
        "optimizer.name = \"adamm\" is not known; did you mean \"adam\"? Allowed: \"sgd\", "))
        << what;
    for (const OptimizerEntry& entry : optimizers())
      EXPECT_NE(what.find(fmt::format("\"{}\"", entry.name)), std::string_view::npos) << what;
  }
}

}  // namespace
}  // namespace ductile::optim
