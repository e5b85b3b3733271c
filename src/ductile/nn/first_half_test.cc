#include "ductile/nn/first_half.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "ductile/nn/ops.h"
#include "ductile/nn/threads.h"

namespace ductile::nn {
namespace {

using at::Tensor;
using ops::Activation;
using torch::autograd::grad;

Tensor trained(const Tensor& t) { return t.detach().clone().requires_grad_(); }

// 3x3 filters from 16 to 32 channels on 5 images of 8x8.
struct NormedConv {
  explicit NormedConv(at::ScalarType type, int64_t conv_stride = 1) : stride(conv_stride) {
    at::manual_seed(7);
    const int64_t side = 8 / stride;
    x = trained(at::randn({5, 16, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast).to(type));
    w = trained((at::randn({32, 16, 3, 3}) * 0.3).to(type));
    residual = trained(at::randn({5, 32, side, side}).to(type));
    bn.weight = trained(at::rand({32}) + 0.5);
    bn.bias = trained(at::randn({32}));
    bn.running_mean = at::zeros({32});
    bn.running_var = at::ones({32});
  }
  Tensor apply(Activation act, const Tensor& r = {}) const {
    return ops::conv_bn_act(x, w, stride, 1, bn, r, act, /*training=*/true);
  }
  Tensor pooled(Activation act) const {
    return ops::conv_bn_act_pool(x, w, stride, 1, bn, act, /*training=*/true, 2);
  }

  int64_t stride;
  Tensor x, w, residual;
  ops::BatchNorm bn;
};

// Winograd's convolutions and direct ones. In fp32 the first half leaves in the place of what it
// read what the second one begins with.
TEST(ConvBnActHalves, HaveTheBitsOfBothAtOnce) {
  enum class Form { plain, residual, pooled };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t stride : {1, 2}) {
      for (const Activation act :
           {Activation::none, Activation::relu, Activation::gelu, Activation::silu}) {
        for (const Form form : {Form::plain, Form::residual, Form::pooled}) {
          SCOPED_TRACE(::testing::Message()
                       << type << ", stride " << stride << ", activation " << static_cast<int>(act)
                       << ", form " << static_cast<int>(form));
          const NormedConv c(type, stride);
          const auto made = [&] {
            if (form == Form::pooled) return c.pooled(act);
            return c.apply(act, form == Form::residual ? c.residual : Tensor());
          };
          std::vector<Tensor> first = {c.x, c.bn.weight, c.bn.bias};
          if (form == Form::residual) first.push_back(c.residual);
          std::vector<Tensor> all = first;
          all.push_back(c.w);
          const Tensor once = made(), again = made();
          const std::vector<Tensor> gradients = {at::randn(once.sizes()).to(type)};
          const std::vector<Tensor> want = grad({once}, all, gradients);
          std::vector<Tensor> got;
          {
            const FirstHalf half(gradients);
            got = grad({again}, first, gradients, /*retain_graph=*/true);
          }
          got.push_back(grad({again}, {c.w}, gradients)[0]);
          for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << i;
        }
      }
    }
  }
}

TEST(ConvBnActHalves, ASecondOneWithAnotherGradientThanTheFirstIsRefused) {
  if (std::string(kernels_in_use()) == "none") GTEST_SKIP() << "ATen does all the work";
  const NormedConv c(at::kFloat);
  const Tensor z = c.apply(Activation::relu);
  const std::vector<Tensor> gradients = {at::randn(z.sizes())};
  {
    const FirstHalf half(gradients);
    EXPECT_TRUE(FirstHalf::begins_with(gradients[0]));
    EXPECT_FALSE(FirstHalf::begins_with(gradients[0].clone()));
    grad({z}, {c.x}, gradients, /*retain_graph=*/true);
  }
  EXPECT_FALSE(FirstHalf::begins_with(gradients[0]));
  EXPECT_ANY_THROW(grad({z}, {c.w}, {gradients[0] * 2}, /*retain_graph=*/true));
  EXPECT_NO_THROW(grad({z}, {c.w}, gradients));
}

}  // namespace
}  // namespace ductile::nn
