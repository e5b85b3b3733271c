#include "ductile/nn/ops.h"

#include <cmath>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/nn/aten_conv.h"
#include "ductile/nn/batch_group.h"
#include "ductile/nn/flops.h"
#include "ductile/nn/kernels/batch_norm.h"
#include "ductile/nn/kernels/conv.h"
#include "ductile/nn/kernels/pool.h"
#include "ductile/nn/precision.h"
#include "ductile/nn/spatial_ops_impl.h"
#include "ductile/nn/threads.h"

namespace ductile::nn::ops {
namespace {

using kernels::Storage;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

bool has_storage(const at::Tensor& t) {
  return t.device().is_cpu() && t.layout() == at::kStrided &&
         (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16 ||
          t.scalar_type() == at::kHalf);
}

Storage storage_of(const at::Tensor& t) {
  if (t.scalar_type() == at::kFloat) return Storage::f32;
  return t.scalar_type() == at::kBFloat16 ? Storage::bf16 : Storage::f16;
}

at::Tensor in_type(const at::Tensor& t, at::ScalarType type) {
  return t.defined() ? t.to(type) : t;
}

c10::optional<at::Tensor> present(const at::Tensor& t) {
  return t.defined() ? c10::optional<at::Tensor>(t) : c10::nullopt;
}

at::Tensor nhwc(const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); }

at::Tensor empty_nhwc(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options().memory_format(at::MemoryFormat::ChannelsLast));
}

kernels::ConvShape conv_shape(const at::Tensor& x, const at::Tensor& w, int64_t stride,
                              int64_t padding) {
  return {x.size(0), x.size(2), x.size(3), x.size(1), w.size(0), w.size(2), stride, padding};
}

bool conv_covered(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding) {
  return has_storage(x) && has_storage(w) && x.dim() == 4 && w.dim() == 4 &&
         w.size(1) == x.size(1) && w.size(2) == w.size(3) &&
         kernels::conv_preferred(conv_shape(x, w, stride, padding));
}

at::Tensor fp32_weight(const at::Tensor& w) { return w.to(at::kFloat).contiguous(); }

// Gradients of a convolution in x and w, as far as wanted, from `grad` (see kernels/conv.h).
variable_list conv_gradients(const at::Tensor& x, const at::Tensor& w, int64_t stride,
                             int64_t padding, const kernels::GradSource& grad, bool want_x,
                             bool want_w) {
  at::Tensor dx, dw;
  if (want_x) dx = empty_nhwc(x.sizes(), x);
  if (want_w) dw = at::empty(w.sizes(), w.options().dtype(at::kFloat));
  const at::Tensor weight = fp32_weight(w);
  kernels::conv_backward(conv_shape(x, w, stride, padding), x.data_ptr(), weight.data_ptr<float>(),
                         grad, want_x ? dx.data_ptr() : nullptr,
                         want_w ? dw.data_ptr<float>() : nullptr);
  return {dx, in_type(dw, w.scalar_type())};
}

struct Conv : Function<Conv> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& w,
                            int64_t stride, int64_t padding) {
    const at::Tensor x = nhwc(x_any), weight = fp32_weight(w);
    const auto shape = conv_shape(x, w, stride, padding);
    at::Tensor y = empty_nhwc({shape.batch, shape.out, shape.out_height(), shape.out_width()}, x);
    const KnownFlops known(convolution_flops(y, w));
    kernels::conv_forward(shape, x.data_ptr(), weight.data_ptr<float>(), storage_of(x),
                          y.data_ptr(), nullptr, nullptr);
    ctx->save_for_backward({x, w});
    ctx->saved_data["stride"] = stride;
    ctx->saved_data["padding"] = padding;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dy = nhwc(grads[0].to(saved[0].scalar_type()));
    kernels::GradSource source{};
    source.grad = dy.data_ptr();
    source.storage = storage_of(dy);
    variable_list d = conv_gradients(saved[0], saved[1], ctx->saved_data["stride"].toInt(),
                                     ctx->saved_data["padding"].toInt(), source,
                                     ctx->needs_input_grad(0), ctx->needs_input_grad(1));
    return {d[0], d[1], {}, {}};
  }
};

// Per-channel vectors of one normalisation, rows of a small fp32 tensor.
enum ChannelRow { kMean, kVariance, kInvStd, kScale, kShift, kForwardRows };

at::Tensor channel_rows(int64_t rows, int64_t channels) {
  return at::empty({rows, channels}, at::TensorOptions(at::kFloat));
}

// Fills kInvStd, kScale and kShift from kMean, kVariance and the affine weights.
void finish_rows(float* rows, int64_t channels, const float* weight, const float* bias,
                 double eps) {
  for (int64_t c = 0; c < channels; ++c) {
    const double inv_std =
        1.0 / std::sqrt(static_cast<double>(rows[kVariance * channels + c]) + eps);
    const double scale = weight[c] * inv_std;
    rows[kInvStd * channels + c] = static_cast<float>(inv_std);
    rows[kScale * channels + c] = static_cast<float>(scale);
    rows[kShift * channels + c] = static_cast<float>(bias[c] - rows[kMean * channels + c] * scale);
  }
}

void move_running(const at::Tensor& running, const float* batch, double factor, double momentum) {
  float* r = running.data_ptr<float>();
  for (int64_t c = 0; c < running.numel(); ++c)
    r[c] = static_cast<float>((1 - momentum) * r[c] + momentum * factor * batch[c]);
}

// Statistics of `count` values a channel become those of all members' values; returns how many
// those are. Sums in double: the squares' mean loses no digit that the float results could show.
template <class T>
double join_statistics(BatchGroup& group, double count, int64_t channels, T* mean, T* variance) {
  std::vector<double> sums(static_cast<size_t>(1 + 2 * channels));
  double* first = sums.data() + 1;
  double* second = first + channels;
  sums[0] = count;
  for (int64_t c = 0; c < channels; ++c) {
    const double m = mean[c];
    first[c] = count * m;
    second[c] = count * (m * m + variance[c]);
  }
  group.sum(sums);
  for (int64_t c = 0; c < channels; ++c) {
    const double m = first[c] / sums[0];
    mean[c] = static_cast<T>(m);
    variance[c] = static_cast<T>(std::max(0.0, second[c] / sums[0] - m * m));
  }
  return sums[0];
}

// What autograd nodes keep of the group: an address, which IValue holds as an integer.
int64_t address_of(BatchGroup* group) { return reinterpret_cast<int64_t>(group); }
BatchGroup* group_at(int64_t address) { return reinterpret_cast<BatchGroup*>(address); }

// x * w in the storage type of x, by whom it is best done, and its statistics where these are
// wanted.
at::Tensor convolve(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding,
                    float* mean, float* variance) {
  if (conv_covered(x, w, stride, padding)) {
    const auto shape = conv_shape(x, w, stride, padding);
    const at::Tensor weight = fp32_weight(w);
    at::Tensor y = empty_nhwc({shape.batch, shape.out, shape.out_height(), shape.out_width()}, x);
    const KnownFlops known(convolution_flops(y, w));
    kernels::conv_forward(shape, x.data_ptr(), weight.data_ptr<float>(), storage_of(x),
                          y.data_ptr(), mean, variance);
    return y;
  }
  at::Tensor y = nhwc(aten_conv2d(widened(x), widened(w), {}, stride, padding).to(x.scalar_type()));
  if (mean != nullptr) {
    kernels::channel_statistics(storage_of(y), y.data_ptr(), y.numel() / y.size(1), y.size(1), mean,
                                variance);
  }
  return y;
}

// As conv_gradients, for what our kernels leave to ATen.
variable_list aten_gradients(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y,
                             int64_t stride, int64_t padding, const kernels::GradSource& grad,
                             bool want_x, bool want_w) {
  const at::Tensor dy = at::empty(
      y.sizes(), y.options().dtype(at::kFloat).memory_format(at::MemoryFormat::ChannelsLast));
  kernels::write_gradient(grad, y.numel() / y.size(1), y.size(1), dy.data_ptr<float>());
  const at::Tensor wide = widened(x);
  const auto d = aten_conv2d_backward(dy.to(wide.scalar_type()), wide, widened(w), stride, padding,
                                      {want_x, want_w, false});
  return {in_type(d[0], x.scalar_type()), in_type(d[1], w.scalar_type())};
}

struct ConvBnAct : Function<ConvBnAct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& w,
                            const at::Tensor& gamma, const at::Tensor& beta,
                            const c10::optional<at::Tensor>& residual_any,
                            const at::Tensor& running_mean, const at::Tensor& running_var,
                            int64_t stride, int64_t padding, double momentum, double eps, bool relu,
                            bool training, bool keep) {
    const at::Tensor x = nhwc(x_any);
    const auto shape = conv_shape(x, w, stride, padding);
    const int64_t channels = shape.out, pixels = shape.out_pixels();
    const at::Tensor stats = channel_rows(kForwardRows, channels);
    float* rows = stats.data_ptr<float>();
    const at::Tensor y =
        convolve(x, w, stride, padding, training ? rows + kMean * channels : nullptr,
                 training ? rows + kVariance * channels : nullptr);
    BatchGroup* const group = training ? current_batch_group() : nullptr;
    double n = static_cast<double>(pixels);
    if (training) {
      if (group != nullptr) {
        n = join_statistics(*group, n, channels, rows + kMean * channels,
                            rows + kVariance * channels);
      }
      if (group == nullptr || group->moves_running_statistics()) {
        move_running(running_mean, rows + kMean * channels, 1.0, momentum);
        move_running(running_var, rows + kVariance * channels, n / std::max(n - 1, 1.0), momentum);
      }
    } else {
      std::copy_n(running_mean.data_ptr<float>(), channels, rows + kMean * channels);
      std::copy_n(running_var.data_ptr<float>(), channels, rows + kVariance * channels);
    }
    finish_rows(rows, channels, gamma.data_ptr<float>(), beta.data_ptr<float>(), eps);

    const at::Tensor residual = residual_any ? nhwc(*residual_any) : at::Tensor();
    const at::Tensor out = keep ? at::empty_like(y) : y;
    kernels::norm_apply({y.data_ptr(), residual.defined() ? residual.data_ptr() : nullptr,
                         out.data_ptr(), storage_of(y), pixels, channels, rows + kScale * channels,
                         rows + kShift * channels, relu});
    if (keep) {
      const bool out_gives_mask = residual.defined() && relu;
      ctx->save_for_backward({x, w, gamma, y, stats, out_gives_mask ? out : at::Tensor()});
      ctx->saved_data["stride"] = stride;
      ctx->saved_data["padding"] = padding;
      ctx->saved_data["relu"] = relu;
      ctx->saved_data["residual"] = residual.defined();
      ctx->saved_data["count"] = n;
      ctx->saved_data["group"] = address_of(group);
      ctx->saved_data["training"] = training;
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &y = saved[3], &out = saved[5];
    const bool relu = ctx->saved_data["relu"].toBool();
    const bool residual = ctx->saved_data["residual"].toBool();
    const bool training = ctx->saved_data["training"].toBool();
    const at::Tensor dz = nhwc(grads[0].to(y.scalar_type()));
    const int64_t channels = y.size(1), pixels = y.numel() / channels;
    const float* rows = saved[4].data_ptr<float>();
    const float* inv_std = rows + kInvStd * channels;
    const float* scale = rows + kScale * channels;

    // The gradient behind the activation is also the residual's: written out where that is wanted.
    at::Tensor g = dz;
    const bool write_g = residual && relu;
    if (write_g) g = at::empty_like(dz);
    at::Tensor dgamma = channel_rows(1, channels).view(channels);
    at::Tensor dbeta = channel_rows(1, channels).view(channels);
    float* sum_gy = dgamma.data_ptr<float>();
    float* sum_g = dbeta.data_ptr<float>();
    kernels::norm_reduce({dz.data_ptr(), y.data_ptr(), write_g ? out.data_ptr() : nullptr,
                          write_g ? g.data_ptr() : nullptr, storage_of(y), pixels, channels, scale,
                          rows + kShift * channels, relu, rows + kMean * channels, sum_g, sum_gy});

    // dy = scale * (g - mean(g) - xhat * mean(g * xhat)), xhat = (y - mean) * inv_std; the means
    // are over all members, the gradients of gamma and beta this member's share. In evaluation mode
    // mean and inv_std do not depend on y, and dy = scale * g.
    const double count = ctx->saved_data["count"].toDouble();
    std::vector<double> sums(sum_g, sum_g + channels);
    sums.insert(sums.end(), sum_gy, sum_gy + channels);
    BatchGroup* const group = group_at(ctx->saved_data["group"].toInt());
    if (group != nullptr) group->sum(sums);
    const at::Tensor map = channel_rows(2, channels);
    float* slope = map.data_ptr<float>();
    float* offset = slope + channels;
    for (int64_t c = 0; c < channels; ++c) {
      const double per_pixel = training ? static_cast<double>(scale[c]) / count : 0;
      slope[c] = static_cast<float>(-per_pixel * inv_std[c] * inv_std[c] * sums[channels + c]);
      offset[c] = static_cast<float>(-per_pixel * sums[c]);
      sum_gy[c] *= inv_std[c];
    }
    kernels::GradSource source{};
    source.grad = g.data_ptr();
    source.storage = storage_of(y);
    source.y = y.data_ptr();
    source.a = scale;
    source.b = slope;
    source.d = offset;
    source.mean = rows + kMean * channels;
    source.relu = relu && !write_g;
    source.scale = scale;
    source.shift = rows + kShift * channels;
    const int64_t stride = ctx->saved_data["stride"].toInt();
    const int64_t padding = ctx->saved_data["padding"].toInt();
    const bool want_x = ctx->needs_input_grad(0), want_w = ctx->needs_input_grad(1);
    variable_list d = conv_covered(x, w, stride, padding)
                          ? conv_gradients(x, w, stride, padding, source, want_x, want_w)
                          : aten_gradients(x, w, y, stride, padding, source, want_x, want_w);
    variable_list all(14);
    all[0] = d[0];
    all[1] = d[1];
    all[2] = dgamma;
    all[3] = dbeta;
    if (residual) all[4] = g;
    return all;
  }
};

struct MaxPool : Function<MaxPool> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, int64_t kernel,
                            int64_t stride, int64_t padding) {
    const at::Tensor x = nhwc(x_any);
    const auto shape = shape_of(x, kernel, stride, padding);
    const at::Tensor y = empty_nhwc({x.size(0), x.size(1), shape.out_height, shape.out_width}, x);
    const at::Tensor index = at::empty({y.numel()}, at::TensorOptions(at::kByte));
    kernels::max_pool(shape, x.size(0), x.data_ptr(), y.data_ptr(), index.data_ptr<uint8_t>());
    ctx->save_for_backward({index});
    ctx->saved_data["sizes"] = x.sizes();
    ctx->saved_data["kernel"] = kernel;
    ctx->saved_data["stride"] = stride;
    ctx->saved_data["padding"] = padding;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor index = ctx->get_saved_variables()[0], dy = nhwc(grads[0]);
    const at::Tensor dx = empty_nhwc(ctx->saved_data["sizes"].toIntVector(), dy);
    const auto shape =
        shape_of(dx, ctx->saved_data["kernel"].toInt(), ctx->saved_data["stride"].toInt(),
                 ctx->saved_data["padding"].toInt());
    kernels::max_pool_grad(shape, dx.size(0), dy.data_ptr(), index.data_ptr<uint8_t>(),
                           dx.data_ptr());
    return {dx, {}, {}, {}};
  }

  static kernels::MaxPool shape_of(const at::Tensor& x, int64_t kernel, int64_t stride,
                                   int64_t padding) {
    const auto along = [&](int64_t n) { return (n + 2 * padding - kernel) / stride + 1; };
    return {storage_of(x), x.size(2), x.size(3),        x.size(1),       kernel,
            stride,        padding,   along(x.size(2)), along(x.size(3))};
  }
};

struct GlobalAvgPool : Function<GlobalAvgPool> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any) {
    const at::Tensor x = nhwc(x_any);
    const at::Tensor y = at::empty({x.size(0), x.size(1)}, x.options());
    kernels::average_pool(storage_of(x), x.size(0), x.size(2) * x.size(3), x.size(1), x.data_ptr(),
                          y.data_ptr());
    ctx->saved_data["sizes"] = x.sizes();
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor dy = grads[0].contiguous();
    const at::Tensor dx = empty_nhwc(ctx->saved_data["sizes"].toIntVector(), dy);
    kernels::average_pool_grad(storage_of(dy), dx.size(0), dx.size(2) * dx.size(3), dx.size(1),
                               dy.data_ptr(), dx.data_ptr());
    return {dx};
  }
};

// libtorch cuts the sum of a single row by the number of threads.
at::Tensor mean_of_rows(const at::Tensor& x_NK) {
  std::optional<OneThread> alone;
  if (x_NK.size(0) == 1) alone.emplace();
  return x_NK.mean(1);
}

// Gradient (softmax - target) in one pass over the saved log-probabilities.
struct CrossEntropy : Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& labels, double smoothing) {
    const at::Tensor log_p = at::log_softmax(logits, 1);
    at::Tensor loss = log_p.gather(1, labels.unsqueeze(1)).squeeze(1).mul_(smoothing - 1);
    if (smoothing != 0) loss.sub_(mean_of_rows(log_p), smoothing);
    ctx->save_for_backward({log_p, labels});
    ctx->saved_data["smoothing"] = smoothing;
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const double smoothing = ctx->saved_data["smoothing"].toDouble();
    const at::Tensor labels = saved[1].unsqueeze(1), scale = grads[0].unsqueeze(1);
    at::Tensor d = saved[0].exp();
    if (smoothing != 0) d.sub_(smoothing / static_cast<double>(d.size(1)));
    d.scatter_add_(1, labels, at::full_like(labels, smoothing - 1, d.options()));
    return {d.mul_(scale), {}, {}};
  }
};

// Batch norm in a group by ATen's elementwise operators; float or double.
struct GroupBatchNorm : Function<GroupBatchNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& gamma,
                            const at::Tensor& beta, const at::Tensor& running_mean,
                            const at::Tensor& running_var, double momentum, double eps) {
    BatchGroup* const group = current_batch_group();
    const int64_t channels = y.size(1);
    at::Tensor variance, mean;
    std::tie(variance, mean) = at::var_mean(y, {0, 2, 3}, /*unbiased=*/false);
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
    const at::Tensor dbeta = g.sum({0, 2, 3}), dgamma = (g * xhat).sum({0, 2, 3});
    const at::Tensor sums = at::stack({dbeta, dgamma}).to(at::kDouble).contiguous();
    group_at(ctx->saved_data["group"].toInt())
        ->sum({sums.data_ptr<double>(), static_cast<size_t>(sums.numel())});
    const at::Tensor means = (sums / ctx->saved_data["count"].toDouble()).to(g.scalar_type());
    const at::Tensor dy =
        (g - per_channel(means[0]) - xhat * per_channel(means[1])) * per_channel(inv_std * gamma);
    return {dy, dgamma, dbeta, {}, {}, {}, {}};
  }

  static at::Tensor per_channel(const at::Tensor& t) { return t.view({1, -1, 1, 1}); }
};

// Class probabilities and their gradient in one pass over the saved log-probabilities, as above.
struct PixelCrossEntropy : Function<PixelCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& labels, double smoothing, SpatialSplit* split) {
    const at::Tensor log_p = at::log_softmax(logits, 1);
    at::Tensor loss = log_p.gather(1, labels.unsqueeze(1)).squeeze(1).mul_(smoothing - 1);
    if (smoothing != 0) loss.sub_(log_p.mean(1), smoothing);
    // The sums of the own pixels, and how many they are for each sample.
    const at::Tensor sums = at::full({loss.size(0) + 1}, loss.size(1) * loss.size(2), at::kDouble);
    {
      std::optional<OneThread> alone;  // as above
      if (loss.size(0) == 1) alone.emplace();
      sums.narrow(0, 0, loss.size(0)).copy_(loss.sum({1, 2}, /*keepdim=*/false, at::kDouble));
    }
    if (split != nullptr) split->sum({sums.data_ptr<double>(), static_cast<size_t>(sums.numel())});
    const double pixels = sums[-1].item<double>();
    ctx->save_for_backward({log_p, labels});
    ctx->saved_data["smoothing"] = smoothing;
    ctx->saved_data["pixels"] = pixels;
    return sums.narrow(0, 0, loss.size(0)).div(pixels).to(logits.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const double smoothing = ctx->saved_data["smoothing"].toDouble();
    const at::Tensor labels = saved[1].unsqueeze(1);
    const at::Tensor scale = grads[0].div(ctx->saved_data["pixels"].toDouble()).view({-1, 1, 1, 1});
    at::Tensor d = saved[0].exp();
    if (smoothing != 0) d.sub_(smoothing / static_cast<double>(d.size(1)));
    d.scatter_add_(1, labels, at::full_like(labels, smoothing - 1, d.options()));
    return {d.mul_(scale), {}, {}, {}};
  }
};

at::Tensor at_least_float(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
}

// Normalisation is in the type of its parameters (float where x is half), the result rounded once.
at::Tensor conv_bn_act_aten(const at::Tensor& x, const at::Tensor& w, int64_t stride,
                            int64_t padding, const BatchNorm& bn, const at::Tensor& residual,
                            bool relu, bool training) {
  const at::ScalarType type = bn.weight.scalar_type();
  at::Tensor y = aten_conv2d(widened(x), widened(w), {}, stride, padding);
  if (training && current_batch_group() != nullptr) {
    y = GroupBatchNorm::apply(y.to(type), bn.weight, bn.bias, bn.running_mean, bn.running_var,
                              bn.momentum, bn.eps);
  } else {
    // libtorch's channels-last kernels cut their sums by the number of threads.
    y = at::batch_norm(y.to(type).contiguous(), bn.weight, bn.bias, bn.running_mean, bn.running_var,
                       training, bn.momentum, bn.eps, /*cudnn_enabled=*/true);
  }
  if (residual.defined()) y = y + residual.to(type);
  return (relu ? y.relu_() : y).to(x.scalar_type());
}

bool requires_grad(std::initializer_list<at::Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& t : tensors)
    if (t.defined() && t.requires_grad()) return true;
  return false;
}

}  // namespace

at::Tensor conv2d(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, int64_t stride,
                  int64_t padding) {
  if (SpatialSplit* split = current_spatial_split())
    return spatial::conv2d(*split, x, w, bias, stride, padding);
  if (conv_covered(x, w, stride, padding)) {
    const at::Tensor y = Conv::apply(x, w, stride, padding);
    return bias.defined() ? y + bias.to(y.scalar_type()).view({1, -1, 1, 1}) : y;
  }
  if (widen(x))
    return conv2d(x.to(at::kFloat), w.to(at::kFloat), in_type(bias, at::kFloat), stride, padding)
        .to(x.scalar_type());
  return aten_conv2d(x, w, bias, stride, padding);
}

at::Tensor conv_bn_act(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding,
                       const BatchNorm& bn, const at::Tensor& residual, bool relu, bool training) {
  if (SpatialSplit* split = current_spatial_split())
    return spatial::conv_bn_act(*split, x, w, stride, padding, bn, residual, relu, training);
  const bool differentiate = requires_grad({x, w, bn.weight, bn.bias, residual});
  const bool covered =
      has_storage(x) && has_storage(w) && x.dim() == 4 && w.dim() == 4 && x.numel() > 0 &&
      w.size(1) == x.size(1) && w.size(2) == w.size(3) && kernels::isa_for(w.size(0)) != nullptr &&
      bn.weight.scalar_type() == at::kFloat && bn.bias.scalar_type() == at::kFloat &&
      bn.running_mean.scalar_type() == at::kFloat &&
      (!residual.defined() || residual.scalar_type() == x.scalar_type());
  if (covered)
    return ConvBnAct::apply(x, w, bn.weight, bn.bias, present(residual), bn.running_mean,
                            bn.running_var, stride, padding, bn.momentum, bn.eps, relu, training,
                            differentiate);
  return conv_bn_act_aten(x, w, stride, padding, bn, residual, relu, training);
}

at::Tensor max_pool2d(const at::Tensor& x, int64_t kernel, int64_t stride, int64_t padding) {
  if (SpatialSplit* split = current_spatial_split())
    return spatial::max_pool2d(*split, x, kernel, stride, padding);
  if (has_storage(x) && x.dim() == 4 && x.size(0) > 0 &&
      kernels::max_pool_supported(MaxPool::shape_of(x, kernel, stride, padding)))
    return MaxPool::apply(x, kernel, stride, padding);
  if (widen(x)) return max_pool2d(x.to(at::kFloat), kernel, stride, padding).to(x.scalar_type());
  return at::max_pool2d(x, {kernel, kernel}, {stride, stride}, {padding, padding});
}

at::Tensor global_avg_pool(const at::Tensor& x) {
  if (SpatialSplit* split = current_spatial_split()) return spatial::global_avg_pool(*split, x);
  if (has_storage(x) && x.dim() == 4 && x.numel() > 0 && kernels::isa_for(x.size(1)) != nullptr)
    return GlobalAvgPool::apply(x);
  if (widen(x)) return global_avg_pool(x.to(at::kFloat)).to(x.scalar_type());
  return x.mean({2, 3});
}

at::Tensor subsample(const at::Tensor& x, int64_t stride) {
  if (SpatialSplit* split = current_spatial_split()) return spatial::subsample(*split, x, stride);
  return x.slice(2, 0, x.size(2), stride).slice(3, 0, x.size(3), stride);
}

at::Tensor upsample_twice(const at::Tensor& x) {
  if (SpatialSplit* split = current_spatial_split()) return spatial::upsample_twice(*split, x);
  if (widen(x)) return upsample_twice(x.to(at::kFloat)).to(x.scalar_type());
  return at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)});
}

at::Tensor whole_image(const at::Tensor& x) {
  SpatialSplit* split = current_spatial_split();
  return split != nullptr ? spatial::whole_image(*split, x) : x;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double smoothing) {
  const at::Tensor losses = CrossEntropy::apply(at_least_float(logits), labels, smoothing);
  SpatialSplit* split = current_spatial_split();
  return split != nullptr ? spatial::shared_by_cells(*split, losses) : losses;
}

at::Tensor pixel_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                               double smoothing) {
  return PixelCrossEntropy::apply(at_least_float(logits), labels, smoothing,
                                  current_spatial_split());
}

}  // namespace ductile::nn::ops
