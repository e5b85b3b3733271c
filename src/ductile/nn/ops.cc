#include "ductile/nn/ops.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>

#include "ductile/nn/precision.h"

namespace ductile::nn::ops {
namespace {

// `t`, which may be undefined, in the type that `like` computes in.
at::Tensor operand(const at::Tensor& t, const at::Tensor& like) {
  if (!t.defined()) return t;
  return t.to(widen(like) ? at::kFloat : like.scalar_type());
}

}  // namespace

at::Tensor conv2d(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, int64_t stride,
                  int64_t padding) {
  return at::conv2d(widened(x), widened(w), operand(bias, x), {stride, stride}, {padding, padding})
      .to(x.scalar_type());
}

at::Tensor conv_bn_act(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding,
                       const BatchNorm& bn, const at::Tensor& residual, bool relu, bool training) {
  at::Tensor y =
      at::conv2d(widened(x), widened(w), {}, {stride, stride}, {padding, padding}).to(at::kFloat);
  y = at::batch_norm(y, bn.weight, bn.bias, bn.running_mean, bn.running_var, training, bn.momentum,
                     bn.eps, /*cudnn_enabled=*/true);
  if (residual.defined()) y = y.add(residual.to(at::kFloat));
  if (relu) y = y.relu();
  return y.to(x.scalar_type());
}

at::Tensor max_pool2d(const at::Tensor& x, int64_t kernel, int64_t stride, int64_t padding) {
  return at::max_pool2d(widened(x), {kernel, kernel}, {stride, stride}, {padding, padding})
      .to(x.scalar_type());
}

at::Tensor global_avg_pool(const at::Tensor& x) {
  return x.to(at::kFloat).mean({2, 3}).to(x.scalar_type());
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  return at::linear(widened(x), widened(w), operand(b, x)).to(x.scalar_type());
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double smoothing) {
  constexpr int64_t kIgnoreNothing = -100;
  return at::cross_entropy_loss(logits.to(at::kFloat), labels, {}, at::Reduction::None,
                                kIgnoreNothing, smoothing);
}

}  // namespace ductile::nn::ops
