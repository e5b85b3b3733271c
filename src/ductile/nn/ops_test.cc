#include "ductile/nn/ops.h"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

namespace ductile::nn::ops {
namespace {

using at::Tensor;

struct Operands {
  Tensor x, w, residual;
  BatchNorm bn;
};

Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(); }

Operands operands(int64_t batch, int64_t in, int64_t out, int64_t height, int64_t width,
                  int64_t kernel, int64_t stride, int64_t padding) {
  at::manual_seed(7);
  Operands o;
  o.x = leaf(at::randn({batch, in, height, width}).contiguous(at::MemoryFormat::ChannelsLast));
  o.w = leaf(at::randn({out, in, kernel, kernel}) * 0.3);
  o.bn = {leaf(at::rand({out}) + 0.5),
          leaf(at::randn({out})),
          at::randn({out}),
          at::rand({out}) + 0.5,
          0.1,
          1e-5};
  const auto along = [&](int64_t n) { return (n + 2 * padding - kernel) / stride + 1; };
  o.residual = leaf(at::randn({batch, out, along(height), along(width)}));
  return o;
}

// The same operands in double: the oracle is ATen there.
Operands in_double(const Operands& o) {
  const auto twin = [](const Tensor& t) { return leaf(t.to(at::kDouble)); };
  Operands d;
  d.x = twin(o.x);
  d.w = twin(o.w);
  d.residual = twin(o.residual);
  d.bn = {twin(o.bn.weight),
          twin(o.bn.bias),
          o.bn.running_mean.to(at::kDouble),
          o.bn.running_var.to(at::kDouble),
          o.bn.momentum,
          o.bn.eps};
  return d;
}

double error(const Tensor& got, const Tensor& want) {
  return ((got.to(at::kDouble) - want).abs().max() / want.abs().max()).item<double>();
}

void expect_gradients(const std::vector<Tensor>& got, const std::vector<Tensor>& want,
                      double tolerance) {
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].grad().defined()) << "operand " << i;
    EXPECT_EQ(got[i].grad().sizes(), got[i].sizes());
    EXPECT_EQ(got[i].grad().scalar_type(), got[i].scalar_type());
    EXPECT_LT(error(got[i].grad(), want[i].grad()), tolerance) << "operand " << i;
  }
}

Tensor activated(const Tensor& y, Activation act) {
  if (act == Activation::gelu) return at::gelu(y);
  if (act == Activation::silu) return at::silu(y);
  return act == Activation::relu ? at::relu(y) : y;
}

constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::gelu,
                                       Activation::silu};

Tensor aten_block(const Operands& o, int64_t stride, int64_t padding, bool residual, Activation act,
                  bool training) {
  Tensor y = at::conv2d(o.x, o.w, {}, {stride, stride}, {padding, padding});
  y = at::batch_norm(y, o.bn.weight, o.bn.bias, o.bn.running_mean, o.bn.running_var, training,
                     o.bn.momentum, o.bn.eps, false);
  if (residual) y = y + o.residual;
  return activated(y, act);
}

class ConvBnActInBothModes : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Training, ConvBnActInBothModes, ::testing::Bool());

TEST_P(ConvBnActInBothModes, EqualsAtenInValuesGradientsAndRunningStatistics) {
  const bool training = GetParam();
  struct Shape {
    int64_t batch, in, out, height, width, kernel, stride, padding;
  };
  for (const Shape& s : {Shape{4, 16, 16, 9, 8, 3, 1, 1},
                         {3, 3, 16, 8, 8, 3, 1, 1},
                         {4, 16, 32, 9, 8, 3, 2, 1},
                         {4, 16, 32, 8, 8, 1, 2, 0},
                         {2, 8, 24, 5, 7, 5, 1, 2},
                         {4, 6, 10, 6, 6, 3, 1, 1}}) {
    for (const bool residual : {false, true}) {
      for (const Activation act : kActivations) {
        SCOPED_TRACE(::testing::Message()
                     << s.in << "->" << s.out << ", stride " << s.stride << ", residual "
                     << residual << ", activation " << static_cast<int>(act));
        Operands o =
            operands(s.batch, s.in, s.out, s.height, s.width, s.kernel, s.stride, s.padding);
        Operands d = in_double(o);
        const Tensor z = conv_bn_act(o.x, o.w, s.stride, s.padding, o.bn,
                                     residual ? o.residual : Tensor(), act, training);
        const Tensor want = aten_block(d, s.stride, s.padding, residual, act, training);
        const Tensor dz = at::randn(z.sizes());
        z.backward(dz);
        want.backward(dz.to(at::kDouble));
        EXPECT_LT(error(z, want), 1e-5);
        EXPECT_LT(error(o.bn.running_mean, d.bn.running_mean), 1e-5);
        EXPECT_LT(error(o.bn.running_var, d.bn.running_var), 1e-5);
        expect_gradients({o.x, o.w, o.bn.weight, o.bn.bias}, {d.x, d.w, d.bn.weight, d.bn.bias},
                         3e-5);
        if (residual) expect_gradients({o.residual}, {d.residual}, 1e-5);
      }
    }
  }
}

// As a split pipeline does it. A gradient that was written to in between is another one.
TEST_P(ConvBnActInBothModes, ToTheInputAndLaterToTheWeightsHasTheBitsOfBothAtOnce) {
  for (const bool residual : {false, true}) {
    for (const Activation act : kActivations) {
      Operands o = operands(4, 16, 16, 9, 8, 3, 1, 1);
      const Tensor z =
          conv_bn_act(o.x, o.w, 1, 1, o.bn, residual ? o.residual : Tensor(), act, GetParam());
      Tensor dz = at::randn(z.sizes());
      const auto pass = [&](const std::vector<Tensor>& to) {
        return torch::autograd::grad({z}, to, {dz}, /*retain_graph=*/true);
      };
      const std::vector<Tensor> once = pass({o.x, o.w});
      EXPECT_TRUE(pass({o.x})[0].equal(once[0]));
      EXPECT_TRUE(pass({o.w})[0].equal(once[1]));
      pass({o.x});
      dz.mul_(2);
      const Tensor doubled = pass({o.w})[0];
      EXPECT_FALSE(doubled.equal(once[1]));
      EXPECT_TRUE(doubled.equal(pass({o.x, o.w})[1]));
    }
  }
}

TEST(ConvBnAct, UsesTheRunningStatisticsOutsideTraining) {
  for (const bool differentiate : {false, true}) {
    const at::AutoGradMode mode(differentiate);
    const Operands o = operands(3, 16, 16, 7, 7, 3, 1, 1), d = in_double(o);
    const Tensor before = o.bn.running_mean.clone();
    const Tensor z = conv_bn_act(o.x, o.w, 1, 1, o.bn, o.residual, Activation::relu, false);
    const Tensor want = aten_block(d, 1, 1, true, Activation::relu, false);
    EXPECT_LT(error(z, want), 1e-5);
    EXPECT_TRUE(before.equal(o.bn.running_mean));
    EXPECT_EQ(z.requires_grad(), differentiate);
    if (!differentiate) continue;
    z.sum().backward();
    want.sum().backward();
    expect_gradients({o.x, o.w, o.bn.weight}, {d.x, d.w, d.bn.weight}, 3e-5);
  }
}

TEST(ConvBnAct, StoresHalfPrecisionAndComputesInFp32) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const double tolerance = type == at::kHalf ? 2e-3 : 1.6e-2;
    for (const int64_t out : {16, 10}) {  // our kernels, and ATen's standing in
      Operands o = operands(4, 16, out, 8, 8, 3, 1, 1);
      o.x = leaf(o.x.to(type));
      o.w = leaf(o.w.to(type));
      o.residual = leaf(o.residual.to(type));
      Operands d = in_double(o);
      const Tensor z = conv_bn_act(o.x, o.w, 1, 1, o.bn, o.residual, Activation::none, true);
      const Tensor want = aten_block(d, 1, 1, true, Activation::none, true);
      EXPECT_EQ(z.scalar_type(), type);
      EXPECT_LT(error(z, want), tolerance);
      const Tensor dz = at::randn(z.sizes()).to(type);
      z.backward(dz);
      want.backward(dz.to(at::kDouble));
      expect_gradients({o.x, o.w, o.bn.weight, o.bn.bias, o.residual},
                       {d.x, d.w, d.bn.weight, d.bn.bias, d.residual}, 2 * tolerance);
    }
  }
}

TEST_P(ConvBnActInBothModes, GivesTheSameBitsForEveryNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const Activation act : kActivations) {
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      Operands o = operands(37, 16, 32, 8, 8, 3, 1, 1);
      const Tensor z = conv_bn_act(o.x, o.w, 1, 1, o.bn, o.residual, act, GetParam());
      z.backward(at::ones_like(z));
      const std::vector<Tensor> all{z,
                                    o.x.grad(),
                                    o.w.grad(),
                                    o.bn.weight.grad(),
                                    o.bn.bias.grad(),
                                    o.residual.grad(),
                                    o.bn.running_mean,
                                    o.bn.running_var};
      if (first.empty()) first = all;
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(all[i].equal(first[i])) << i << " of activation " << static_cast<int>(act);
    }
  }
  at::set_num_threads(before);
}

struct PoolCase {
  int64_t batch, in, out, side, kernel;
};

// Direct convolutions and Winograd's, images within blocks of the sums and blocks within images,
// and what is left to the two functions.
TEST(ConvBnActPool, HasTheBitsOfTheActivationAndThePool) {
  const int before = at::get_num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const PoolCase& c :
         {PoolCase{5, 1, 16, 28, 2}, PoolCase{5, 16, 32, 14, 2}, PoolCase{2, 8, 8, 48, 2},
          PoolCase{9, 8, 16, 9, 3}, PoolCase{3, 8, 16, 9, 2}}) {
      for (const bool training : {true, false}) {
        for (const int threads : {1, 3}) {
          at::set_num_threads(threads);
          Operands one = operands(c.batch, c.in, c.out, c.side, c.side, 3, 1, 1);
          Operands two = operands(c.batch, c.in, c.out, c.side, c.side, 3, 1, 1);
          for (Operands* o : {&one, &two}) {
            o->x = leaf(o->x.to(type));
            o->w = leaf(o->w.to(type));
          }
          const Tensor apart =
              max_pool2d(conv_bn_act(one.x, one.w, 1, 1, one.bn, {}, Activation::relu, training),
                         c.kernel, c.kernel, 0);
          const Tensor together =
              conv_bn_act_pool(two.x, two.w, 1, 1, two.bn, Activation::relu, training, c.kernel);
          const Tensor g = at::randn(apart.sizes()).to(type);
          apart.backward(g);
          together.backward(g);
          const auto all = [](const Operands& o, const Tensor& y) {
            return std::vector<Tensor>{y,
                                       o.x.grad(),
                                       o.w.grad(),
                                       o.bn.weight.grad(),
                                       o.bn.bias.grad(),
                                       o.bn.running_mean,
                                       o.bn.running_var};
          };
          const std::vector<Tensor> want = all(one, apart), got = all(two, together);
          for (size_t i = 0; i < want.size(); ++i)
            EXPECT_TRUE(got[i].equal(want[i])) << i << " of side " << c.side << ", " << type;
        }
      }
    }
  }
  at::set_num_threads(before);
}

// What stands between a convolution and a normalisation, or follows a bias.
TEST(BnAct, EqualsAtenInValuesGradientsAndRunningStatistics) {
  for (const int64_t channels : {16, 24, 10}) {
    for (const Activation act : kActivations) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message()
                     << channels << " channels, " << static_cast<int>(act) << ", " << type);
        const double tolerance = type == at::kFloat ? 1e-5 : 2e-2;
        Operands o = operands(5, channels, channels, 7, 6, 1, 1, 0);
        o.x = leaf(o.x.to(type));
        Operands d = in_double(o);
        const Tensor z = bn_act(o.x, o.bn, act, true);
        const Tensor want =
            activated(at::batch_norm(d.x, d.bn.weight, d.bn.bias, d.bn.running_mean,
                                     d.bn.running_var, true, d.bn.momentum, d.bn.eps, false),
                      act);
        const Tensor dz = at::randn(z.sizes()).to(type);
        z.backward(dz);
        want.backward(dz.to(at::kDouble));
        EXPECT_EQ(z.scalar_type(), type);
        EXPECT_LT(error(z, want), tolerance);
        EXPECT_LT(error(o.bn.running_mean, d.bn.running_mean), 1e-5);
        EXPECT_LT(error(o.bn.running_var, d.bn.running_var), 1e-5);
        expect_gradients({o.x, o.bn.weight, o.bn.bias}, {d.x, d.bn.weight, d.bn.bias},
                         3 * tolerance);
        const at::NoGradGuard no_grad;
        const Tensor before = o.x.clone();
        const Tensor evaluated = bn_act(o.x, o.bn, act, false);
        EXPECT_LT(error(evaluated,
                        activated(at::batch_norm(d.x, d.bn.weight, d.bn.bias, d.bn.running_mean,
                                                 d.bn.running_var, false, 0.1, d.bn.eps, false),
                                  act)),
                  tolerance);
        EXPECT_TRUE(before.equal(o.x));
      }
    }
  }
}

TEST(BiasAct, EqualsAtenInValuesAndGradients) {
  for (const int64_t channels : {16, 24, 10}) {
    for (const Activation act : kActivations) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        const double tolerance = type == at::kFloat ? 1e-5 : 2e-2;
        const Tensor x = leaf(at::randn({3, channels, 5, 4}).to(type));
        const Tensor bias = leaf(at::randn({channels}).to(type));
        const Tensor x_d = leaf(x.to(at::kDouble)), bias_d = leaf(bias.to(at::kDouble));
        const Tensor z = bias_act(x, bias, act);
        const Tensor want = activated(x_d + bias_d.view({1, -1, 1, 1}), act);
        const Tensor dz = at::randn(z.sizes()).to(type);
        z.backward(dz);
        want.backward(dz.to(at::kDouble));
        EXPECT_LT(error(z, want), tolerance);
        expect_gradients({x, bias}, {x_d, bias_d}, 3 * tolerance);
      }
    }
  }
}

// Far from zero, where a tail is all that is left of the value.
TEST(BiasAct, SmoothActivationsAreRightEverywhere) {
  for (const Activation act : {Activation::gelu, Activation::silu}) {
    const Tensor values = at::linspace(-100, 100, 8 * 4001).view({1, 8, 4001, 1});
    const Tensor x = leaf(values), d = leaf(values.to(at::kDouble)), bias = at::zeros({8});
    const Tensor z = bias_act(x, bias, act), want = activated(d, act);
    EXPECT_LT((z.to(at::kDouble) - want).abs().max().item<double>(), 1e-5);
    z.sum().backward();
    want.sum().backward();
    EXPECT_LT((x.grad().to(at::kDouble) - d.grad()).abs().max().item<double>(), 1e-6);
  }
}

TEST(BnAct, RefusesVectorsOfAnotherLength) {
  const Operands o = operands(2, 16, 16, 6, 6, 3, 1, 1);
  for (const auto member :
       {&BatchNorm::weight, &BatchNorm::bias, &BatchNorm::running_mean, &BatchNorm::running_var}) {
    for (const bool training : {true, false}) {
      BatchNorm bn = o.bn;
      bn.*member = at::ones({8});
      EXPECT_ANY_THROW(bn_act(o.x, bn, Activation::relu, training));
      EXPECT_ANY_THROW(conv_bn_act(o.x, o.w, 1, 1, bn, {}, Activation::relu, training));
      EXPECT_ANY_THROW(conv_bn_act_pool(o.x, o.w, 1, 1, bn, Activation::relu, training, 2));
    }
  }
  EXPECT_ANY_THROW(bias_act(o.x, at::ones({8}), Activation::relu));
  const Tensor smaller = at::randn({2, 16, 5, 6});
  EXPECT_ANY_THROW(conv_bn_act(o.x, o.w, 1, 1, o.bn, smaller, Activation::relu, true));
}

TEST(BnAct, RefusesPoolsWithoutAPixel) {
  const Operands o = operands(2, 16, 16, 6, 6, 3, 1, 1);
  for (const bool training : {true, false}) {
    for (const int64_t window : {0, -2}) {
      EXPECT_ANY_THROW(conv_bn_act_pool(o.x, o.w, 1, 1, o.bn, Activation::relu, training, window));
    }
  }
}

TEST(Conv2d, EqualsAtenWithAndWithoutBias) {
  for (const int64_t out : {16, 10}) {
    for (const bool biased : {false, true}) {
      Operands o = operands(3, 8, out, 6, 9, 3, 1, 1), d = in_double(o);
      const Tensor bias = biased ? o.bn.bias : Tensor(), bias_d = biased ? d.bn.bias : Tensor();
      const Tensor y = conv2d(o.x, o.w, bias, 1, 1);
      const Tensor want = at::conv2d(d.x, d.w, bias_d, {1, 1}, {1, 1});
      EXPECT_LT(error(y, want), 1e-5);
      y.square().sum().backward();
      want.square().sum().backward();
      expect_gradients({o.x, o.w}, {d.x, d.w}, 3e-5);
      if (biased) expect_gradients({o.bn.bias}, {d.bn.bias}, 3e-5);
    }
  }
}

TEST(Conv2d, LeavesGroupsToAten) {
  const Tensor x = leaf(at::randn({2, 16, 8, 8})), w = at::randn({16, 1, 3, 3});
  EXPECT_TRUE(
      at::allclose(conv2d(x, w, {}, 1, 1), at::conv2d(x, w, {}, {1, 1}, {1, 1}, {1, 1}, 16)));
}

TEST(Pools, EqualAten) {
  for (const int64_t channels : {16, 5}) {
    const Tensor x = leaf(at::randn({3, channels, 9, 8})), d = leaf(x.to(at::kDouble));
    const Tensor y = max_pool2d(x, 3, 2, 1), want = at::max_pool2d(d, {3, 3}, {2, 2}, {1, 1});
    EXPECT_LT(error(y, want), 1e-7);
    y.square().sum().backward();
    want.square().sum().backward();
    expect_gradients({x}, {d}, 1e-6);

    x.mutable_grad() = Tensor();
    d.mutable_grad() = Tensor();
    const Tensor mean = global_avg_pool(x), want_mean = d.mean({2, 3});
    EXPECT_LT(error(mean, want_mean), 1e-6);
    mean.square().sum().backward();
    want_mean.square().sum().backward();
    expect_gradients({x}, {d}, 1e-6);
  }
  EXPECT_EQ(max_pool2d(at::randn({1, 5, 4, 4}).to(at::kHalf), 2, 2, 0).scalar_type(), at::kHalf);
}

TEST(Pools, RefuseWindowsThatDoNotFitAsAtenDoes) {
  const Tensor x = at::randn({1, 16, 2, 5});
  EXPECT_ANY_THROW(max_pool2d(x, 3, 2, 0));  // no window fits the height
  EXPECT_ANY_THROW(max_pool2d(x.transpose(2, 3), 3, 2, 0));
  EXPECT_ANY_THROW(max_pool2d(x, 2, 0, 0));
  EXPECT_ANY_THROW(max_pool2d(x, 0, 1, 0));
  EXPECT_EQ(max_pool2d(x, 3, 2, 1).sizes().vec(), (std::vector<int64_t>{1, 16, 1, 3}));
}

TEST(Subsample, IsAtensToTheBit) {
  const int before = at::get_num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int64_t stride : {1, 2, 3}) {
      for (const int64_t more : {0, 5}) {
        for (const int threads : {1, 3}) {
          at::set_num_threads(threads);
          const Tensor x = at::randn({3, 5, 8, 7}).to(type);
          const Tensor one = leaf(x), two = leaf(x.contiguous(at::MemoryFormat::ChannelsLast));
          const Tensor want = at::constant_pad_nd(one.slice(2, 0, 8, stride).slice(3, 0, 7, stride),
                                                  {0, 0, 0, 0, 0, more}, 0);
          const Tensor got = subsample(two, stride, 5 + more);
          EXPECT_TRUE(got.equal(want));
          const Tensor g = at::randn(want.sizes()).to(type);
          want.backward(g);
          got.backward(g);
          EXPECT_TRUE(two.grad().equal(one.grad()));
        }
      }
    }
  }
  at::set_num_threads(before);
}

TEST(Flatten, IsAtensToTheBit) {
  const int before = at::get_num_threads();
  for (const Tensor& x : {at::randn({5, 32, 7, 7}), at::randn({128, 16, 6, 5}),
                          at::randn({2, 1, 4, 4}), at::randn({3, 8, 1, 1}), at::randn({4, 6})}) {
    for (const bool last : {true, false}) {
      for (const int threads : {1, 3}) {
        at::set_num_threads(threads);
        Tensor one = leaf(x), two = leaf(x);
        if (last && x.dim() == 4) {
          for (Tensor* t : {&one, &two})
            *t = leaf(t->detach().contiguous(at::MemoryFormat::ChannelsLast));
        }
        const Tensor want = one.flatten(1), got = ops::flatten(two), g = at::randn(want.sizes());
        EXPECT_TRUE(got.equal(want));
        EXPECT_TRUE(got.is_contiguous());
        want.backward(g);
        got.backward(g);
        EXPECT_TRUE(two.grad().equal(one.grad()));
      }
    }
  }
  at::set_num_threads(before);
}

// Of the layers x -> y, with gradients in x and in all weights, against the same in double.
void expect_layer(const std::function<Tensor(const std::vector<Tensor>&)>& layer,
                  const std::function<Tensor(const std::vector<Tensor>&)>& want,
                  const std::vector<Tensor>& operands) {
  std::vector<Tensor> got_leaves, want_leaves;
  for (const Tensor& t : operands) {
    got_leaves.push_back(leaf(t));
    want_leaves.push_back(leaf(t.to(at::kDouble)));
  }
  const Tensor y = layer(got_leaves), d = want(want_leaves);
  ASSERT_EQ(y.sizes(), d.sizes());
  EXPECT_LT(error(y, d), 1e-5);
  const Tensor weights = at::randn(y.sizes());
  (y * weights).sum().backward();
  (d * weights.to(at::kDouble)).sum().backward();
  expect_gradients(got_leaves, want_leaves, 1e-5);
}

TEST(Linear, EqualsAtenInDouble) {
  at::manual_seed(5);
  using Tensors = std::vector<Tensor>;
  using Shape = std::vector<int64_t>;
  for (Shape shape : {Shape{1}, Shape{37}, Shape{3, 7}, Shape{2, 1, 5}}) {
    shape.push_back(33);
    const Tensor x = at::randn(shape), b = at::randn({10});
    expect_layer([](const Tensors& t) { return ops::linear(t[0], t[1], t[2]); },
                 [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); },
                 {x, at::randn({10, 33}), b});
    expect_layer([](const Tensors& t) { return ops::linear(t[0], t[1], Tensor()); },
                 [](const Tensors& t) { return at::linear(t[0], t[1]); }, {x, at::randn({10, 33})});
    expect_layer([](const Tensors& t) { return affine(t[0], t[1], t[2]); },
                 [](const Tensors& t) { return at::matmul(t[0], t[1]).add(t[2]); },
                 {x, at::randn({33, 10}), b});
  }
}

TEST(Linear, TakesGradientsAndInputsInAnyLayout) {
  const Tensor w = leaf(at::randn({5, 12})), b = leaf(at::randn({5}));
  const Tensor x = at::randn({12, 8}).t(),
               every_second = at::randn({16, 24}).slice(0, 0, 16, 2).slice(1, 0, 24, 2);
  for (const Tensor& input : {x, every_second})
    EXPECT_LT(error(linear(input, w, b),
                    at::linear(input.to(at::kDouble), w.to(at::kDouble), b.to(at::kDouble))),
              1e-5);
  linear(x, w, b).sum().backward();  // a gradient without strides
  EXPECT_TRUE(at::allclose(w.grad(), x.sum(0).expand({5, 12}), 1e-5, 1e-5));
  EXPECT_TRUE(at::equal(b.grad(), at::full({5}, 8.0F)));
}

TEST(Matmul, EqualsAtenInDouble) {
  at::manual_seed(6);
  using Tensors = std::vector<Tensor>;
  const auto layer = [](const Tensors& t) { return ops::matmul(t[0], t[1].transpose(-2, -1)); };
  const auto want = [](const Tensors& t) { return at::matmul(t[0], t[1].transpose(-2, -1)); };
  expect_layer(layer, want, {at::randn({2, 3, 17, 8}), at::randn({2, 3, 20, 8})});
  expect_layer(layer, want, {at::randn({4, 5, 6}), at::randn({4, 9, 6})});
  expect_layer(layer, want, {at::randn({5, 6}), at::randn({9, 6})});
}

TEST(Matmul, LeavesSizesThatDoNotFitToAten) {
  const Tensor a = at::randn({4, 5, 6}), one = at::randn({1, 6, 3}), plain = at::randn({6, 3});
  EXPECT_TRUE(ops::matmul(a, one).equal(at::matmul(a, one)));
  EXPECT_TRUE(ops::matmul(a, plain).equal(at::matmul(a, plain)));
  EXPECT_ANY_THROW(ops::matmul(a, at::randn({4, 5, 3})));
  EXPECT_ANY_THROW(ops::matmul(a, at::randn({3, 6, 3})));
}

TEST(Linear, HasTheSameBitsForEveryNumberOfThreads) {
  const auto run = [](int threads) {
    at::set_num_threads(threads);
    at::manual_seed(8);
    const Tensor x = leaf(at::randn({120, 300})), w = leaf(at::randn({70, 300}));
    const Tensor q = leaf(at::randn({6, 40, 16}));
    ops::linear(x, w, Tensor()).square().sum().backward();
    ops::matmul(q, q.transpose(1, 2)).square().sum().backward();
    at::set_num_threads(1);
    return std::vector<Tensor>{x.grad(), w.grad(), q.grad()};
  };
  const std::vector<Tensor> one = run(1);
  for (const int threads : {2, 3}) {
    const std::vector<Tensor> more = run(threads);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], more[i])) << i;
  }
}

TEST(Linear, KeepsTheActivationsType) {
  const Tensor x = at::randn({4, 12}), w = leaf(at::randn({5, 12})), b = leaf(at::randn({5}));
  const Tensor want = at::linear(x.to(at::kDouble), w.to(at::kDouble), b.to(at::kDouble)).detach();
  EXPECT_LT(error(linear(x, w, b), want), 1e-5);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const Tensor y = linear(x.to(type), w, b);
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_LT(error(y, want), 0.02);
  }
  linear(x.to(at::kHalf), w, b).sum().backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
}

TEST(CrossEntropy, EqualsAtenForEverySample) {
  for (const double smoothing : {0.0, 0.1}) {
    const Tensor logits = leaf(at::randn({6, 10}) * 3), d = leaf(logits.to(at::kDouble));
    const Tensor labels = at::randint(10, {6}, at::kLong), weights = at::rand({6});
    const Tensor loss = cross_entropy(logits, labels, smoothing);
    const Tensor want = at::cross_entropy_loss(d, labels, {}, at::Reduction::None, -100, smoothing);
    EXPECT_EQ(loss.sizes(), at::IntArrayRef({6}));
    EXPECT_LT(error(loss, want), 1e-6);
    (loss * weights).sum().backward();
    (want * weights.to(at::kDouble)).sum().backward();
    expect_gradients({logits}, {d}, 1e-6);
  }
  EXPECT_EQ(cross_entropy(at::randn({2, 3}).to(at::kBFloat16), at::zeros({2}, at::kLong), 0)
                .scalar_type(),
            at::kFloat);
}

TEST(CrossEntropy, HasTheBitsOfSingleOperators) {
  for (const double smoothing : {0.0, 0.1}) {
    const Tensor logits = leaf(at::randn({128, 10}) * 3);
    const Tensor labels = at::randint(10, {128}, at::kLong);
    const Tensor log_p = at::log_softmax(logits.detach(), 1), at_labels = labels.unsqueeze(1);
    Tensor want = log_p.gather(1, at_labels).squeeze(1).mul(smoothing - 1);
    Tensor gradient = log_p.exp();
    if (smoothing != 0) {
      want.sub_(log_p.mean(1), smoothing);
      gradient.sub_(smoothing / 10);
    }
    gradient.scatter_add_(1, at_labels, at::full({128, 1}, smoothing - 1)).mul_(1.0F / 128);
    const Tensor loss = cross_entropy(logits, labels, smoothing);
    EXPECT_TRUE(loss.equal(want));
    loss.mean().backward();
    EXPECT_TRUE(logits.grad().equal(gradient));
  }
  EXPECT_ANY_THROW(cross_entropy(at::randn({2, 3}), at::full({2}, 3, at::kLong), 0));
}

}  // namespace
}  // namespace ductile::nn::ops
