#include "ductile/parallel/stage_executor.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"
#include "ductile/nn/threads.h"
#include "ductile/parallel/allocation_count.h"

namespace ductile::parallel {
namespace {

using nn::kModelInput;
using nn::Operator;
using nn::OperatorGraph;
using nn::Source;
using nn::Tensors;

std::vector<int> numbers_of(const OperatorGraph& graph) {
  std::vector<int> out;
  for (size_t i = 0; i < graph.operators().size(); ++i) out.push_back(static_cast<int>(i));
  return out;
}

OperatorGraph without_shortcuts(const OperatorGraph& graph) {
  OperatorGraph out;
  for (const Operator& op : graph.operators()) out.add(op);
  out.set_results(graph.results());
  return out;
}

// What three micro-batches through all operators come to.
struct PassOutcome {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  int64_t held = 0;     // bytes of the first one behind its forward pass
  int64_t waiting = 0;  // and behind its way back to the inputs
};

class Zoo {
 public:
  explicit Zoo(const std::string& name) {
    nn::ModelArgs args;
    args.options.name = name;
    args.options.width = 8;
    args.options.convolutions = 3;
    args.info = nn::ModelInfo{3, 32, 32, 10, 0};
    model_ = nn::make_model(args);
    operators_ = nn::training_operators(*model_, 0);
    at::manual_seed(5);
    for (int m = 0; m < 3; ++m) {
      inputs_.push_back({at::randn({4, 3, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast),
                         at::randint(10, {4}, at::kLong)});
    }
    for (const nn::NamedTensor& b : model_->buffers()) before_.push_back(b.tensor.clone());
  }

  const OperatorGraph& operators() const { return operators_; }

  PassOutcome run(const OperatorGraph& graph, const StageExecutorOptions& options) const {
    for (size_t i = 0; i < before_.size(); ++i) {
      const at::NoGradGuard no_grad;
      model_->buffers()[i].tensor.variable_data().copy_(before_[i]);
    }
    PassOutcome out;
    const auto add = [&](const std::string& name, const at::Tensor& value) {
      if (value.defined()) out.tensors.emplace_back(name, value.clone());
    };
    StageExecutor executor(graph, numbers_of(graph), options);
    for (int64_t m = 0; m < std::ssize(inputs_); ++m) {
      const auto memory = std::make_shared<AllocationCount>();
      {
        const AllocationCount::Watch watch(memory);
        const Tensors made = executor.forward(m, inputs_[static_cast<size_t>(m)]);
        if (m == 0) out.held = memory->live_of(0);
        for (const at::Tensor& t : made) add(fmt::format("output of {}", m), t);
        std::vector<std::vector<StageExecutor::Gradient>> gradients(made.size());
        gradients[0] = {{at::ones_like(made[0]), 1000}};
        executor.backward(m, std::move(gradients));
        if (m == 0) out.waiting = memory->live_of(0);
        if (options.split) executor.backward_weights(m);
      }
      EXPECT_EQ(executor.num_held(), 0);
    }
    for (const int op : executor.ops()) {
      for (const at::Tensor& t : executor.weight_gradients(op))
        add(fmt::format("gradient of {}", op), t);
      for (const at::Tensor& t : executor.buffer_sums(op)) add(fmt::format("buffers of {}", op), t);
    }
    for (const nn::NamedTensor& b : model_->buffers()) add(b.name, b.tensor);
    return out;
  }

 private:
  std::unique_ptr<nn::Model> model_;
  OperatorGraph operators_;
  std::vector<Tensors> inputs_;
  Tensors before_;
};

void expect_same(const PassOutcome& want, const PassOutcome& got, const std::string& what) {
  ASSERT_EQ(got.tensors.size(), want.tensors.size()) << what;
  for (size_t i = 0; i < want.tensors.size(); ++i) {
    EXPECT_EQ(got.tensors[i].first, want.tensors[i].first) << what;
    EXPECT_TRUE(got.tensors[i].second.equal(want.tensors[i].second))
        << what << ": " << want.tensors[i].first;
  }
}

TEST(StageExecutor, ShortcutsHaveTheBitsOfTheirParts) {
  const Zoo cnn("cnn");
  const OperatorGraph plain = without_shortcuts(cnn.operators());
  ASSERT_NE(cnn.operators().shortcut(0), nullptr);
  ASSERT_EQ(plain.shortcut(0), nullptr);
  for (const bool exact : {false, true}) {
    for (const bool split : {false, true}) {
      for (const std::vector<int>& recompute :
           {std::vector<int>{}, {0, 1, 2, 3, 4, 5, 6}, {0}, {1, 3}, {2, 3}}) {
        const StageExecutorOptions options = {split, exact, recompute};
        const std::string what =
            fmt::format("exact {}, split {}, {} recomputed", exact, split, recompute.size());
        const PassOutcome parts = cnn.run(plain, options);
        expect_same(parts, cnn.run(cnn.operators(), options), what);
        EXPECT_GT(parts.tensors.size(), 20U);
      }
    }
  }
}

// The activations in front of both pools, of 4 samples in 8 and 16 channels, are never in memory as
// a whole. The way back to the inputs leaves nothing behind that is as large, either.
TEST(StageExecutor, AShortcutHoldsLess) {
  if (std::string(nn::kernels_in_use()) == "none") GTEST_SKIP() << "ATen does all the work";
  const Zoo cnn("cnn");
  const OperatorGraph plain = without_shortcuts(cnn.operators());
  constexpr int64_t kActivations = 4 * 4 * (8 * 32 * 32 + 16 * 16 * 16);
  const StageExecutorOptions options = {.split = true, .recompute = {}};
  const PassOutcome parts = cnn.run(plain, options), both = cnn.run(cnn.operators(), options);
  EXPECT_EQ(parts.held - both.held, kActivations);
  EXPECT_GE(parts.waiting - both.waiting, kActivations);
}

// Nodes put what both halves of a pass need in the place of what they had saved: with and without a
// residual, and behind a smooth activation.
TEST(StageExecutor, BothHalvesOfAPassHaveTheBitsOfOne) {
  for (const char* name : {"cnn", "resnet8", "airbench"}) {
    const Zoo zoo(name);
    const PassOutcome once = zoo.run(zoo.operators(), {.split = false, .recompute = {}});
    for (const bool again : {false, true}) {
      StageExecutorOptions options = {.split = true, .recompute = {}};
      if (again) options.recompute = numbers_of(zoo.operators());
      expect_same(once, zoo.run(zoo.operators(), options), fmt::format("{}, {}", name, again));
    }
  }
}

// Two operators and a shortcut that gives something else, so that it can be seen: x w, and 1 more.
struct Seen {
  explicit Seen(const std::function<void(Operator&)>& change = {}) {
    const at::Tensor w = at::full({2}, 3.0).requires_grad_();
    Operator a;
    a.name = "a";
    a.kind = "product";
    a.inputs = {{kModelInput, 0}};
    a.parameters = {{"w", w}};
    a.run = [w](std::span<const at::Tensor> in) { return Tensors{in[0] * w}; };
    Operator b;
    b.name = "b";
    b.kind = "sum";
    b.inputs = {{0, 0}};
    b.run = [](std::span<const at::Tensor> in) { return Tensors{in[0] + 1}; };
    if (change) change(b);
    graph.add(std::move(a));
    graph.add(std::move(b));
    graph.add_shortcut(0, [w](std::span<const at::Tensor> in) { return Tensors{in[0] * w + 100}; });
    graph.set_results({{1, 0}});
  }

  // What `ops` make of ones.
  double value(const std::vector<int>& ops, const std::vector<int>& recompute = {}) const {
    StageExecutor executor(graph, ops, {false, false, recompute});
    return executor.forward(0, {at::ones({2})})[0][0].item<double>();
  }

  OperatorGraph graph;
};

TEST(StageExecutor, GoesAShortcutWhereItRunsBothEndsAlike) {
  const Seen seen;
  EXPECT_EQ(seen.value({0, 1}), 103);
  EXPECT_EQ(seen.value({0, 1}, {0, 1}), 103);
  EXPECT_EQ(seen.value({0, 1}, {0}), 4);
  EXPECT_EQ(seen.value({0, 1}, {1}), 4);
  EXPECT_EQ(seen.value({0}), 3);
  EXPECT_EQ(seen.value({1}), 2);
  EXPECT_EQ(Seen([](Operator& b) { b.random = true; }).value({0, 1}), 4);
  const at::Tensor own = at::ones({2}).requires_grad_();
  const auto has_own = [&](Operator& b) { b.parameters = {{"own", own}}; };
  EXPECT_EQ(Seen(has_own).value({0, 1}), 4);
}

}  // namespace
}  // namespace ductile::parallel
