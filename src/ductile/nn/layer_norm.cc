#include "ductile/nn/layer_norm.h"

#include <tuple>

#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ductile::nn::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct LayerNorm : Function<LayerNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, double eps) {
    auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, weight, bias, eps);
    context->save_for_backward({x, weight, bias, mean, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &mean = saved[3], &rstd = saved[4];
    const at::Tensor dy = gradients[0].contiguous();
    const int64_t dim = x.size(-1);
    const at::Tensor dx = std::get<0>(at::native_layer_norm_backward(
        dy, x, {dim}, mean, rstd, saved[1], saved[2], {true, false, false}));
    // Sums over rows: each column is one thread's.
    const at::Tensor dy_RD = dy.reshape({-1, dim});
    const at::Tensor normal_RD = x.sub(mean).mul_(rstd).reshape({-1, dim});
    return {dx, normal_RD.mul_(dy_RD).sum(0), dy_RD.sum(0), at::Tensor()};
  }
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps) {
  return LayerNorm::apply(x.contiguous(), weight, bias, eps);
}

}  // namespace ductile::nn::ops
