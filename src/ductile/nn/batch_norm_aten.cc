#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/nn/batch_group.h"
#include "ductile/nn/batch_norm_impl.h"
#include "ductile/nn/ops.h"
#include "ductile/nn/threads.h"

// Batch normalisation where our kernels do not do it.
namespace ductile::nn::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Batch norm in a group by ATen's elementwise operators; float or double.
struct GroupBatchNorm : Function<GroupBatchNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& gamma,
                            const at::Tensor& beta, const at::Tensor& running_mean,
                            const at::Tensor& running_var, double momentum, double eps) {
    BatchGroup* const group = current_batch_group();
    const int64_t channels = y.size(1);
    at::Tensor variance, mean;
    {
      std::optional<OneThread> alone;  // libtorch cuts a single sum by the number of threads
      if (channels == 1) alone.emplace();
      std::tie(variance, mean) = at::var_mean(y, {0, 2, 3}, /*unbiased=*/false);
    }
    variance = variance.to(at::kDouble).contiguous();
    mean = mean.to(at::kDouble).contiguous();
    const double count =
        join_statistics(*group, static_cast<double>(y.numel() / channels), channels,
                        mean.data_ptr<double>(), variance.data_ptr<double>());
    if (group->moves_running_statistics()) {
      const double unbiased = count / std::max(count - 1, 1.0);
      running_mean.mul_(1 - momentum).add_(mean, momentum);
      running_var.mul_(1 - momentum).add_(variance, momentum * unbiased);
    }
    const at::Tensor inv_std = (variance + eps).rsqrt().to(y.scalar_type());
    const at::Tensor centred = y - per_channel(mean.to(y.scalar_type()));
    ctx->save_for_backward({centred, inv_std, gamma});
    ctx->saved_data["count"] = count;
    ctx->saved_data["group"] = address_of(group);
    return centred * per_channel(inv_std * gamma) + per_channel(beta);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &centred = saved[0], &inv_std = saved[1], &gamma = saved[2], &g = grads[0];
    const at::Tensor xhat = centred * per_channel(inv_std);
    const at::Tensor dbeta = sum_of_channels(g), dgamma = sum_of_channels(g * xhat);
    const at::Tensor sums = at::stack({dbeta, dgamma}).to(at::kDouble).contiguous();
    group_at(ctx->saved_data["group"].toInt())
        ->sum({sums.data_ptr<double>(), static_cast<size_t>(sums.numel())});
    const at::Tensor means = (sums / ctx->saved_data["count"].toDouble()).to(g.scalar_type());
    const at::Tensor dy =
        (g - per_channel(means[0]) - xhat * per_channel(means[1])) * per_channel(inv_std * gamma);
    return {dy, dgamma, dbeta, {}, {}, {}, {}};
  }

  static at::Tensor per_channel(const at::Tensor& t) { return t.view({1, -1, 1, 1}); }

  static at::Tensor sum_of_channels(const at::Tensor& t) {
    std::optional<OneThread> alone;  // as above
    if (t.size(1) == 1) alone.emplace();
    return t.sum({0, 2, 3});
  }
};

// libtorch's channels-last kernels cut their sums by the number of threads. A contiguous tensor of
// one channel or one pixel may count as channels-last too, but in three dimensions it cannot.
// Images of one pixel always take these kernels, so that they become the pixels of one image.
at::Tensor plain_batch_norm(const at::Tensor& y, const BatchNorm& bn, bool training) {
  at::Tensor flat = y.dim() > 2 ? y.contiguous().flatten(2) : y.unsqueeze(2);
  const bool one_pixel = flat.size(2) == 1;
  if (one_pixel) flat = flat.transpose(0, 2).contiguous();
  flat = at::batch_norm(flat, bn.weight, bn.bias, bn.running_mean, bn.running_var, training,
                        bn.momentum, bn.eps, /*cudnn_enabled=*/true);
  return (one_pixel ? flat.transpose(0, 2) : flat).reshape(y.sizes());
}

}  // namespace

at::Tensor activated(const at::Tensor& y, Activation act) {
  switch (act) {
    case Activation::none:
      break;
    case Activation::relu:
      return y.relu();
    case Activation::gelu:
      return at::gelu(y);
    case Activation::silu:
      return at::silu(y);
  }
  return y;
}

at::Tensor bn_act_aten(at::Tensor y, const BatchNorm& bn, const at::Tensor& residual,
                       Activation act, bool training, at::ScalarType out) {
  const at::ScalarType type = bn.weight.scalar_type();
  if (training && current_batch_group() != nullptr) {
    y = GroupBatchNorm::apply(y.to(type), bn.weight, bn.bias, bn.running_mean, bn.running_var,
                              bn.momentum, bn.eps);
  } else {
    y = plain_batch_norm(y.to(type), bn, training);
  }
  if (residual.defined()) y = y + residual.to(type);
  return activated(y, act).to(out);
}

}  // namespace ductile::nn::ops
