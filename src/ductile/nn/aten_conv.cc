#include "ductile/nn/aten_conv.h"

#include <algorithm>
#include <exception>
#include <tuple>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/nn/compat.h"
#include "ductile/nn/flops.h"
#include "ductile/nn/kernels/product.h"
#include "ductile/nn/matrix_impl.h"
#include "ductile/nn/threads.h"

namespace ductile::nn::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Rows of a product that one thread computes: enough for BLAS, few enough for many threads.
constexpr int64_t kPixels = 512, kFilters = 64;

// out = a b. Where ATen does it, `rows` rows at a time: how a product is cut is what its rounding
// depends on.
void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, int64_t rows) {
  if (kernels::product_supported()) {
    return kernels::product({matrix_of(a), matrix_of(b), out.data_ptr<float>(), out.stride(0),
                             out.stride(1), out.size(0), out.size(1), a.size(1), false});
  }
  const int64_t pieces = (out.size(0) + rows - 1) / rows;
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t p = 0; p < pieces; ++p) {
    try {
      const OneThread alone;
      const at::NoGradGuard no_grad;
      const int64_t begin = p * rows, n = std::min(rows, out.size(0) - begin);
      at::Tensor piece = out.narrow(0, begin, n);
      at::mm_out(piece, a.narrow(0, begin, n), b);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

at::Tensor nhwc(const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); }

// [B, C, H, W] as [B * H * W, C]; shares memory with `t` where that is channels-last.
at::Tensor pixels_of(const at::Tensor& t) {
  return nhwc(t).permute({0, 2, 3, 1}).reshape({-1, t.size(1)});
}

at::Tensor empty_nhwc(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options().memory_format(at::MemoryFormat::ChannelsLast));
}

at::Tensor every(const at::Tensor& x, int64_t stride) {
  return stride == 1 ? x : x.slice(2, 0, x.size(2), stride).slice(3, 0, x.size(3), stride);
}

// A convolution that is one product of matrices; oneDNN's rounds by the number of threads.
bool is_product(const at::Tensor& x, const at::Tensor& w, int64_t padding) {
  return x.scalar_type() == at::kFloat && w.size(2) == 1 && w.size(3) == 1 && padding == 0 &&
         w.size(1) == x.size(1) && x.numel() > 0;
}

at::Tensor product(const at::Tensor& x_any, const at::Tensor& w, int64_t stride) {
  const at::Tensor x = every(x_any, stride);
  const at::Tensor y = empty_nhwc({x.size(0), w.size(0), x.size(2), x.size(3)}, x);
  const KnownFlops known(convolution_flops(y, w));
  multiply(pixels_of(y), pixels_of(x), w.flatten(1).t(), kPixels);
  return y;
}

std::array<at::Tensor, 3> product_backward(const at::Tensor& dy_any, const at::Tensor& x,
                                           const at::Tensor& w, int64_t stride,
                                           std::array<bool, 3> wanted) {
  const at::Tensor dy = pixels_of(dy_any);
  std::array<at::Tensor, 3> d;
  if (wanted[0]) {
    const at::Tensor seen = every(x, stride), dx = empty_nhwc(seen.sizes(), x);
    multiply(pixels_of(dx), dy, w.flatten(1), kPixels);
    d[0] = dx;
    if (stride > 1) {
      d[0] = empty_nhwc(x.sizes(), x).zero_();
      every(d[0], stride).copy_(dx);
    }
  }
  if (wanted[1]) {
    d[1] = at::empty(w.sizes(), w.options());
    multiply(d[1].flatten(1), dy.t(), pixels_of(every(x, stride)), kFilters);
  }
  if (wanted[2]) d[2] = dy.sum(0);
  return d;
}

struct AtenConv : Function<AtenConv> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const Maybe<at::Tensor>& bias, int64_t stride, int64_t padding) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["stride"] = stride;
    ctx->saved_data["padding"] = padding;
    ctx->saved_data["bias"] = bias.has_value();
    if (!is_product(x, w, padding)) {
      return at::conv2d(x, w, bias, {stride, stride}, {padding, padding}, {1, 1},
                        x.size(1) / w.size(1));
    }
    const at::Tensor y = product(x, w, stride);
    return bias ? y.add_(bias->view({1, -1, 1, 1})) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const bool bias = ctx->saved_data["bias"].toBool();
    const auto d = aten_conv2d_backward(
        grads[0], saved[0], saved[1], ctx->saved_data["stride"].toInt(),
        ctx->saved_data["padding"].toInt(),
        {ctx->needs_input_grad(0), ctx->needs_input_grad(1), bias && ctx->needs_input_grad(2)});
    return {d[0], d[1], d[2], {}, {}};
  }
};

}  // namespace

at::Tensor aten_conv2d(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                       int64_t stride, int64_t padding) {
  if (!x.device().is_cpu()) {
    return at::conv2d(x, w, bias, {stride, stride}, {padding, padding}, {1, 1},
                      x.size(1) / w.size(1));
  }
  return AtenConv::apply(x, w, bias.defined() ? Maybe<at::Tensor>(bias) : kNone, stride, padding);
}

std::array<at::Tensor, 3> aten_conv2d_backward(const at::Tensor& dy_any, const at::Tensor& x,
                                               const at::Tensor& w, int64_t stride, int64_t padding,
                                               std::array<bool, 3> wanted) {
  if (is_product(x, w, padding)) return product_backward(dy_any, x, w, stride, wanted);
  const at::Tensor dy = dy_any.contiguous(x.suggest_memory_format());
  const auto gradients = [&](std::array<bool, 3> mask) {
    return at::convolution_backward(dy, x, w, at::IntArrayRef(w.size(0)), {stride, stride},
                                    {padding, padding}, {1, 1}, /*transposed=*/false, {0, 0},
                                    x.size(1) / w.size(1), mask);
  };
  std::array<at::Tensor, 3> d;
  if (wanted[0]) d[0] = std::get<0>(gradients({true, false, false}));
  if (wanted[1] || wanted[2]) {
    // Several threads, a piece of the filters each, would be faster, but oneDNN 2.6 corrupts memory
    // where several threads make primitives.
    const OneThread alone;
    std::tie(std::ignore, d[1], d[2]) = gradients({false, wanted[1], wanted[2]});
  }
  return d;
}

}  // namespace ductile::nn::ops
