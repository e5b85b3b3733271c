#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

// The differentiable operators of which the built-in models are made, on NHWC (channels-last)
// activations [B,C,H,W].
//
// On CPU in fp32, bf16 or fp16, if the kernels in kernels/ are faster for the shape
// (conv_preferred), the operators run these fused vector kernels: the arithmetic is in fp32
// whatever the activations' type, and results have the same bits for every number of threads.
// Anything else (very wide layers, groups, double, other devices) runs ATen's operators; CPU fp16
// and bf16 are then computed in fp32 and rounded. Weights have PyTorch's shapes and their gradients
// the same shape and type. Inputs are never changed, except the running statistics of BatchNorm.
//
// Under a spatial split (spatial.h), an activation [B,C,H,W], and an operator's output, is only
// this cell's part; H and W below are those of the whole images. Other tensors [B, ..] have the
// same contents on every cell.
namespace ductile::nn::ops {

// x [B,C,H,W], w [K,C,R,R], bias [K] or undefined -> [B,K,H',W'].
at::Tensor conv2d(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, int64_t stride,
                  int64_t padding);

// Handles on the model's own tensors, each [K] and fp32.
struct BatchNorm {
  at::Tensor weight, bias, running_mean, running_var;
  double momentum = 0.1;
  double eps = 1e-5;
};

// GELU is the exact one, x * Phi(x); SiLU is x / (1 + exp(-x)).
enum class Activation { none, relu, gelu, silu };

// act(batch_norm(conv2d(x, w)) + residual) as one node. Training uses the statistics of the batch,
// or of the whole current group (batch_group.h), and updates the running ones. Evaluation uses the
// running ones.
at::Tensor conv_bn_act(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding,
                       const BatchNorm& bn, const at::Tensor& residual, Activation act,
                       bool training);

// max_pool2d(conv_bn_act(x, ..), kernel, kernel, 0) without a residual, to the bit. Where our
// kernels do it, the windows cover the image and the activation is not a smooth one, what lies
// between the two is never in memory as a whole, and neither is its gradient.
at::Tensor conv_bn_act_pool(const at::Tensor& x, const at::Tensor& w, int64_t stride,
                            int64_t padding, const BatchNorm& bn, Activation act, bool training,
                            int64_t kernel);

// act(batch_norm(x)), as above.
at::Tensor bn_act(const at::Tensor& x, const BatchNorm& bn, Activation act, bool training);

// act(x + bias), bias [C].
at::Tensor bias_act(const at::Tensor& x, const at::Tensor& bias, Activation act);

at::Tensor max_pool2d(const at::Tensor& x, int64_t kernel, int64_t stride, int64_t padding);

// [B,C,H,W] -> [B,C].
at::Tensor global_avg_pool(const at::Tensor& x);

// Every stride-th pixel in both directions, from the first on; with `channels` channels, of which
// those that x does not have are zero (0: those of x).
at::Tensor subsample(const at::Tensor& x, int64_t stride, int64_t channels = 0);

// Every pixel as 2x2 pixels (nearest neighbour): [B,C,H,W] -> [B,C,2H,2W].
at::Tensor upsample_twice(const at::Tensor& x);

// Returns x; under a spatial split it returns the whole activation on every cell, for layers that
// need all pixels.
at::Tensor whole_image(const at::Tensor& x);

// x [B,C,H,W] -> [B, C * H * W], as torch.flatten(x, 1). Works on what whole_image() returns.
at::Tensor flatten(const at::Tensor& x);

// x [.., I], w [O,I], b [O] or undefined -> [.., O].
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);
// The same with w [I,O] and a bias.
at::Tensor affine(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);

// a [.., R, K], b [.., K, C] with the same leading sizes -> [.., R, C].
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b);

// Per-sample loss [B] (fp32 at least) of logits [B,K] against int64 labels [B], with the target
// (1 - smoothing) * one-hot + smoothing / K.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double smoothing);

// The same for a class for each pixel: per-sample means [B] over the pixels of logits [B,K,H,W]
// against labels [B,H,W].
at::Tensor pixel_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                               double smoothing);

}  // namespace ductile::nn::ops
