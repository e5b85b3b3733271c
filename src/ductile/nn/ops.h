#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

// The differentiable operators that the model zoo is made of.
//
// Shapes: B batch, C channels, H height, W width, K classes. Images are [B, C, H, W], in
// channels-last or contiguous memory; the result keeps the layout of the input.
// Types: x and w share one type, float, bfloat16 or half; biases may be of that type or float;
// batch-norm tensors are always float. Results have the type of x, losses are float. Sums and
// statistics are taken in float whatever the type; where a machine lacks fast low-precision
// arithmetic an operator computes in float and rounds its result once (see precision.h).
// Threads: operators may run in several threads at once on different tensors.
// Determinism: the same inputs and thread count give the same bits, forward and backward.
namespace ductile::nn::ops {

// Cross-correlation of x [B, C, H, W] with w [O, C, k, k], zero padding on every side.
// `bias` [O] may be undefined.
at::Tensor conv2d(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, int64_t stride,
                  int64_t padding);

// Batch normalisation (Ioffe and Szegedy 2015): weight and bias are learnt, running_* are buffers
// updated in place in training: running = (1 - momentum) * running + momentum * batch, with the
// unbiased variance, as PyTorch does. All [C], float.
struct BatchNorm {
  at::Tensor weight, bias, running_mean, running_var;
  double momentum = 0.1;
  double eps = 1e-5;
};

// y = relu?(bn(conv2d(x, w)) + residual?). `residual` (the shape of y) may be undefined. In
// training the batch's own statistics are used and the running ones updated; otherwise the running
// ones are used.
at::Tensor conv_bn_act(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding,
                       const BatchNorm& bn, const at::Tensor& residual, bool relu, bool training);

// Largest value of each window; padding never wins.
at::Tensor max_pool2d(const at::Tensor& x, int64_t kernel, int64_t stride, int64_t padding);

// [B, C, H, W] -> [B, C].
at::Tensor global_avg_pool(const at::Tensor& x);

// x [..., I] times w [O, I] transposed, plus b [O] (may be undefined).
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);

// -sum_k q_k log softmax(logits)_k of each row, q = (1 - smoothing) * onehot(label) + smoothing /
// K. logits [N, K], labels [N] int64 -> [N] float.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double smoothing);

}  // namespace ductile::nn::ops
