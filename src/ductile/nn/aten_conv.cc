#include "ductile/nn/aten_conv.h"

#include <array>
#include <tuple>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/nn/threads.h"

namespace ductile::nn::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Geometry {
  int64_t stride, padding, groups;

  std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients(const at::Tensor& dy,
                                                           const at::Tensor& x, const at::Tensor& w,
                                                           std::array<bool, 3> wanted) const {
    return at::convolution_backward(dy, x, w, at::IntArrayRef(w.size(0)), {stride, stride},
                                    {padding, padding}, {1, 1}, /*transposed=*/false, {0, 0},
                                    groups, wanted);
  }
};

struct AtenConv : Function<AtenConv> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const c10::optional<at::Tensor>& bias, int64_t stride,
                            int64_t padding) {
    const int64_t groups = x.size(1) / w.size(1);
    ctx->save_for_backward({x, w});
    ctx->saved_data["stride"] = stride;
    ctx->saved_data["padding"] = padding;
    ctx->saved_data["bias"] = bias.has_value();
    return at::conv2d(x, w, bias, {stride, stride}, {padding, padding}, {1, 1}, groups);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1];
    const at::Tensor dy = grads[0].contiguous(x.suggest_memory_format());
    const Geometry geometry{ctx->saved_data["stride"].toInt(), ctx->saved_data["padding"].toInt(),
                            x.size(1) / w.size(1)};
    const bool bias = ctx->saved_data["bias"].toBool();
    variable_list all(5);
    if (ctx->needs_input_grad(0)) {
      all[0] = std::get<0>(geometry.gradients(dy, x, w, {true, false, false}));
    }
    if (ctx->needs_input_grad(1) || (bias && ctx->needs_input_grad(2))) {
      const OneThread alone;
      std::tie(std::ignore, all[1], all[2]) = geometry.gradients(dy, x, w, {false, true, bias});
    }
    return all;
  }
};

}  // namespace

at::Tensor aten_conv2d(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                       int64_t stride, int64_t padding) {
  if (!x.device().is_cpu()) {
    return at::conv2d(x, w, bias, {stride, stride}, {padding, padding}, {1, 1},
                      x.size(1) / w.size(1));
  }
  return AtenConv::apply(x, w, bias.defined() ? c10::optional<at::Tensor>(bias) : c10::nullopt,
                         stride, padding);
}

}  // namespace ductile::nn::ops
