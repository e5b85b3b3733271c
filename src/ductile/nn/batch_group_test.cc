#include "ductile/nn/batch_group.h"

#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "ductile/nn/model.h"
#include "ductile/nn/ops.h"

namespace ductile::nn {
namespace {

using at::Tensor;
using ops::BatchNorm;
using ops::conv_bn_act;

// Members on a thread each, all at once; sums in the order of the members.
class ThreadGroup {
 public:
  explicit ThreadGroup(int size) : leaves_(static_cast<size_t>(size)), barrier_(size) {}

  void run(const std::function<void(int)>& body) {
    std::vector<std::jthread> threads;
    for (int i = 0; i < static_cast<int>(leaves_.size()); ++i) {
      threads.emplace_back([this, i, &body] {
        Member member(*this, i);
        const BatchGroupScope scope(&member);
        body(i);
      });
    }
  }

 private:
  class Member final : public BatchGroup {
   public:
    Member(ThreadGroup& group, int index) : group_(group), index_(index) {}

   protected:
    void all_reduce(std::span<double> values) override {
      group_.leaves_[static_cast<size_t>(index_)] = {values.begin(), values.end()};
      group_.barrier_.arrive_and_wait();
      std::ranges::fill(values, 0.0);
      for (const std::vector<double>& leaf : group_.leaves_) {
        for (size_t i = 0; i < values.size(); ++i) values[i] += leaf.at(i);
      }
      group_.barrier_.arrive_and_wait();
    }

   private:
    ThreadGroup& group_;
    const int index_;
  };

  std::vector<std::vector<double>> leaves_;
  std::barrier<> barrier_;
};

Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(); }

struct Block {
  Tensor x, w, residual;
  BatchNorm bn;
  int64_t stride, padding;
  bool relu;

  // Own leaves with the values of rows begin .. end - 1, of the given types.
  Block part(int64_t begin, int64_t end, at::ScalarType type, at::ScalarType norm) const {
    const auto of = [](const Tensor& t, at::ScalarType s) {
      return t.defined() ? leaf(t.to(s)) : t;
    };
    Block b = *this;
    b.x = of(x.slice(0, begin, end), type);
    b.w = of(w, type);
    b.residual = residual.defined() ? of(residual.slice(0, begin, end), type) : residual;
    b.bn.weight = of(bn.weight, norm);
    b.bn.bias = of(bn.bias, norm);
    b.bn.running_mean = bn.running_mean.detach().to(norm).clone();
    b.bn.running_var = bn.running_var.detach().to(norm).clone();
    return b;
  }
  Tensor run() const {
    return conv_bn_act(x, w, stride, padding, bn, residual,
                       relu ? ops::Activation::relu : ops::Activation::none, true);
  }
  // With ATen's own batch norm.
  Tensor run_aten() const {
    Tensor y = at::conv2d(x, w, {}, {stride, stride}, {padding, padding});
    y = at::batch_norm(y, bn.weight, bn.bias, bn.running_mean, bn.running_var, true, bn.momentum,
                       bn.eps, false);
    if (residual.defined()) y = y + residual;
    return relu ? at::relu(y) : y;
  }
};

Block block(int64_t batch, int64_t in, int64_t out, int64_t kernel, int64_t stride, bool residual,
            bool relu, double mean) {
  at::manual_seed(5);
  const int64_t padding = kernel / 2, side = 6;
  const int64_t to = (side + 2 * padding - kernel) / stride + 1;
  Block b;
  // Members differ in mean and spread: what each would do alone is far from the right thing.
  const Tensor per_sample = at::arange(batch, at::kDouble).view({-1, 1, 1, 1}) / batch;
  b.x = (at::randn({batch, in, side, side}, at::kDouble) * (0.3 + per_sample) + per_sample + mean)
            .to(at::kBFloat16)
            .to(at::kDouble);
  b.w = (at::randn({out, in, kernel, kernel}, at::kDouble) * 0.3).to(at::kBFloat16).to(at::kDouble);
  if (residual) b.residual = at::randn({batch, out, to, to}, at::kDouble).to(at::kBFloat16);
  b.bn = {at::rand({out}, at::kDouble) + 0.5,
          at::randn({out}, at::kDouble),
          at::randn({out}, at::kDouble),
          at::rand({out}, at::kDouble) + 0.5,
          0.1,
          1e-5};
  b.stride = stride;
  b.padding = padding;
  b.relu = relu;
  return b;
}

double error(const Tensor& got, const Tensor& want) {
  return ((got.to(at::kDouble) - want).abs().max() / want.abs().max()).item<double>();
}

// One group of members on `bounds`, held to one pass of ATen in double over the whole batch.
void expect_one_batch(const Block& all, const std::vector<int64_t>& bounds, at::ScalarType type,
                      at::ScalarType norm, double tolerance) {
  const int members = static_cast<int>(bounds.size()) - 1;
  const Block want = all.part(0, bounds.back(), at::kDouble, at::kDouble);
  const Tensor z = want.run_aten();
  const Tensor dz = at::randn(z.sizes(), at::kDouble).to(type).to(at::kDouble);
  z.backward(dz);

  std::vector<Block> parts;
  std::vector<Tensor> outs(static_cast<size_t>(members));
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    parts.push_back(all.part(bounds[i], bounds[i + 1], type, norm));
  }
  ThreadGroup(members).run([&](int i) {
    const auto at = static_cast<size_t>(i);
    outs[at] = parts[at].run();
    outs[at].backward(dz.slice(0, bounds[at], bounds[at + 1]).to(type));
  });

  const auto joined = [&](const std::function<Tensor(const Block&)>& of) {
    std::vector<Tensor> rows;
    for (const Block& p : parts) rows.push_back(of(p));
    return at::cat(rows);
  };
  const auto summed = [&](const std::function<Tensor(const Block&)>& of) {
    Tensor sum = of(parts[0]).to(at::kDouble);
    for (size_t i = 1; i < parts.size(); ++i) sum = sum + of(parts[i]).to(at::kDouble);
    return sum;
  };
  EXPECT_LT(error(at::cat(outs), z), tolerance);
  EXPECT_LT(error(joined([](const Block& b) { return b.x.grad(); }), want.x.grad()), tolerance);
  if (all.residual.defined()) {
    EXPECT_LT(error(joined([](const Block& b) { return b.residual.grad(); }), want.residual.grad()),
              tolerance);
  }
  EXPECT_LT(error(summed([](const Block& b) { return b.w.grad(); }), want.w.grad()), tolerance);
  EXPECT_LT(error(summed([](const Block& b) { return b.bn.weight.grad(); }), want.bn.weight.grad()),
            tolerance);
  EXPECT_LT(error(summed([](const Block& b) { return b.bn.bias.grad(); }), want.bn.bias.grad()),
            tolerance);
  for (const Block& p : parts) {
    EXPECT_LT(error(p.bn.running_mean, want.bn.running_mean), tolerance);
    EXPECT_LT(error(p.bn.running_var, want.bn.running_var), tolerance);
    EXPECT_TRUE(p.bn.running_var.equal(parts[0].bn.running_var));
  }
}

const std::vector<std::vector<int64_t>> kBounds = {{0, 12}, {0, 6, 12}, {0, 4, 8, 12}, {0, 1, 12}};

TEST(BatchGroup, EqualsOneBatchForEveryVariant) {
  for (const int64_t out : {16, 10}) {  // our kernels, and ATen's operators
    for (const int64_t stride : {1, 2}) {
      for (const bool residual : {false, true}) {
        for (const bool relu : {false, true}) {
          const Block all = block(12, 8, out, 3, stride, residual, relu, 0);
          for (const std::vector<int64_t>& bounds : kBounds) {
            SCOPED_TRACE(::testing::Message()
                         << out << " channels, stride " << stride << ", residual " << residual
                         << ", relu " << relu << ", " << bounds.size() - 1 << " members");
            expect_one_batch(all, bounds, at::kFloat, at::kFloat, 1e-5);
            expect_one_batch(all, bounds, at::kDouble, at::kDouble, 1e-12);
          }
        }
      }
    }
  }
}

// A normalisation by itself, with an activation whose slope is not a sign.
TEST(BatchGroup, EqualsOneBatchWithoutAConvolution) {
  for (const int64_t channels : {16, 10}) {
    at::manual_seed(5);
    const Tensor x = at::randn({12, channels, 5, 5}) + at::arange(12).view({-1, 1, 1, 1});
    const auto bn = [&] {
      return BatchNorm{leaf(at::ones({channels})),
                       leaf(at::zeros({channels})),
                       at::zeros({channels}),
                       at::ones({channels}),
                       0.4,
                       1e-12};
    };
    const Tensor whole = leaf(x), dz = at::randn(x.sizes());
    BatchNorm whole_bn = bn();
    const Tensor want = ops::bn_act(whole, whole_bn, ops::Activation::gelu, true);
    want.backward(dz);
    std::vector<Tensor> parts, outs(2);
    std::vector<BatchNorm> norms;
    for (int m = 0; m < 2; ++m) {
      parts.push_back(leaf(x.slice(0, 6 * m, 6 * m + 6)));
      norms.push_back(bn());
    }
    ThreadGroup(2).run([&](int m) {
      const auto at = static_cast<size_t>(m);
      outs[at] = ops::bn_act(parts[at], norms[at], ops::Activation::gelu, true);
      outs[at].backward(dz.slice(0, 6 * m, 6 * m + 6));
    });
    const auto same = [&](const Tensor& got, const Tensor& of_whole) {
      EXPECT_LT(error(got, of_whole.to(at::kDouble)), 1e-5) << channels;
    };
    same(at::cat({outs[0], outs[1]}), want);
    same(at::cat({parts[0].grad(), parts[1].grad()}), whole.grad());
    same(norms[0].bias.grad() + norms[1].bias.grad(), whole_bn.bias.grad());
    same(norms[1].running_var, whole_bn.running_var);
  }
}

// Values far from zero against their spread.
TEST(BatchGroup, KeepsItsDigitsWhereTheMeanIsLarge) {
  const Block all = block(12, 8, 16, 1, 1, false, false, 40);
  for (const std::vector<int64_t>& bounds : kBounds) {
    expect_one_batch(all, bounds, at::kFloat, at::kFloat, 1e-4);
    expect_one_batch(all, bounds, at::kDouble, at::kDouble, 1e-10);
  }
}

TEST(BatchGroup, ComputesInFp32OnHalfActivations) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t out : {16, 10}) {
      // Without ReLU: its mask would turn at other places.
      const Block all = block(12, 8, out, 3, 1, true, false, 0);
      expect_one_batch(all, {0, 4, 8, 12}, type, at::kFloat, type == at::kHalf ? 4e-3 : 3e-2);
    }
  }
}

TEST(BatchGroup, GivesTheSameBitsForEveryNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const int64_t out : {32, 10}) {
    const Block all = block(36, 16, out, 3, 1, true, true, 0);
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      std::vector<Block> parts{all.part(0, 18, at::kFloat, at::kFloat),
                               all.part(18, 36, at::kFloat, at::kFloat)};
      std::vector<Tensor> outs(2);
      ThreadGroup(2).run([&](int i) {
        at::init_num_threads();
        outs[static_cast<size_t>(i)] = parts[static_cast<size_t>(i)].run();
        outs[static_cast<size_t>(i)].square().sum().backward();
      });
      std::vector<Tensor> now{outs[1], parts[1].x.grad(), parts[1].bn.weight.grad(),
                              parts[1].bn.running_var};
      if (out == 32) now.push_back(parts[1].w.grad());  // oneDNN's depends on the threads
      if (first.empty()) first = now;
      for (size_t i = 0; i < now.size(); ++i)
        EXPECT_TRUE(now[i].equal(first[i])) << out << " " << i;
    }
  }
  at::set_num_threads(before);
}

// Of a size at which libtorch's operators use several threads.
TEST(BatchGroup, OneChannelGivesTheSameBitsForEveryNumberOfThreads) {
  const int before = at::get_num_threads();
  at::manual_seed(5);
  const Tensor x = at::randn({128, 1, 28, 28}), dz = at::randn(x.sizes());
  std::vector<Tensor> first;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    std::vector<Tensor> parts, outs(2);
    std::vector<BatchNorm> norms;
    for (int m = 0; m < 2; ++m) {
      parts.push_back(leaf(x.slice(0, 64 * m, 64 * m + 64)));
      norms.push_back(
          {leaf(at::ones({1})), leaf(at::zeros({1})), at::zeros({1}), at::ones({1}), 0.1, 1e-5});
    }
    ThreadGroup(2).run([&](int m) {
      at::init_num_threads();
      const auto i = static_cast<size_t>(m);
      outs[i] = ops::bn_act(parts[i], norms[i], ops::Activation::none, true);
      outs[i].backward(dz.slice(0, 64 * m, 64 * m + 64));
    });
    const std::vector<Tensor> now{outs[1],
                                  parts[1].grad(),
                                  norms[1].weight.grad(),
                                  norms[1].bias.grad(),
                                  norms[1].running_mean,
                                  norms[1].running_var};
    if (first.empty()) first = now;
    for (size_t i = 0; i < now.size(); ++i)
      EXPECT_TRUE(now[i].equal(first[i])) << threads << " threads, " << i;
  }
  at::set_num_threads(before);
}

TEST(BatchGroup, OutsideTrainingAndOutsideAScopeNobodyMeets) {
  class Never final : public BatchGroup {
    void all_reduce(std::span<double>) override { ADD_FAILURE() << "met"; }
  };
  const Block b = block(4, 8, 16, 3, 1, false, true, 0).part(0, 4, at::kFloat, at::kFloat);
  Never never;
  {
    const BatchGroupScope scope(&never);
    EXPECT_EQ(current_batch_group(), &never);
    const at::NoGradGuard no_grad;
    conv_bn_act(b.x, b.w, 1, 1, b.bn, {}, ops::Activation::relu, false);
    const BatchGroupScope none(nullptr);
    conv_bn_act(b.x, b.w, 1, 1, b.bn, {}, ops::Activation::relu, true);
  }
  EXPECT_EQ(current_batch_group(), nullptr);
  b.run().sum().backward();
  EXPECT_EQ(never.num_sums(), 0);
}

// Members that take turns draw from one generator: each must find its own place again.
TEST(BatchGroup, OthersDrawsFromTheGeneratorDoNotShow) {
  class Drawing final : public BatchGroup {
    void all_reduce(std::span<double>) override {
      seed_step(99);
      at::rand({7});
    }
  } drawing;
  seed_step(1);
  const Tensor expected = at::rand({5});
  seed_step(1);
  drawing.sum({});
  EXPECT_TRUE(at::rand({5}).equal(expected));
}

}  // namespace
}  // namespace ductile::nn
