#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/base/error.h"
#include "ductile/nn/aten_conv.h"
#include "ductile/nn/batch_group.h"
#include "ductile/nn/batch_norm_impl.h"
#include "ductile/nn/compat.h"
#include "ductile/nn/first_half.h"
#include "ductile/nn/flops.h"
#include "ductile/nn/kernels/batch_norm.h"
#include "ductile/nn/kernels/conv.h"
#include "ductile/nn/kernels/pool.h"
#include "ductile/nn/ops.h"
#include "ductile/nn/ops_impl.h"
#include "ductile/nn/precision.h"
#include "ductile/nn/spatial_ops_impl.h"

// Batch normalisation and activations: conv_bn_act, bn_act and bias_act of ops.h.
namespace ductile::nn::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Maybe<at::Tensor> present(const at::Tensor& t) {
  return t.defined() ? Maybe<at::Tensor>(t) : kNone;
}

kernels::Act act_of(Activation act) { return static_cast<kernels::Act>(act); }

bool is_smooth(kernels::Act act) { return act == kernels::Act::gelu || act == kernels::Act::silu; }

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
  kernels::write_gradient(grad, y.numel() / y.size(1), y.size(1), kernels::Storage::f32,
                          dy.data_ptr());
  const at::Tensor wide = widened(x);
  const auto d = aten_conv2d_backward(dy.to(wide.scalar_type()), wide, widened(w), stride, padding,
                                      {want_x, want_w, false});
  return {in_type(d[0], x.scalar_type()), in_type(d[1], w.scalar_type())};
}

// What one normalisation is, besides its tensors.
struct NormArgs {
  double momentum, eps;
  kernels::Act act;
  bool training;
};

// Ends what a pass over y has begun: with the moments of y in its rows (in training), moves the
// running statistics, and fills the other rows. Returns the number of values per channel.
double settle_rows(float* rows, int64_t channels, double count, const at::Tensor& gamma,
                   const at::Tensor& beta, const at::Tensor& running_mean,
                   const at::Tensor& running_var, const NormArgs& norm, BatchGroup* group) {
  float* const mean = rows + kMean * channels;
  float* const variance = rows + kVariance * channels;
  if (norm.training) {
    if (group != nullptr) count = join_statistics(*group, count, channels, mean, variance);
    if (group == nullptr || group->moves_running_statistics()) {
      move_running(running_mean, mean, 1.0, norm.momentum);
      move_running(running_var, variance, count / std::max(count - 1, 1.0), norm.momentum);
    }
  } else {
    std::copy_n(running_mean.data_ptr<float>(), channels, mean);
    std::copy_n(running_var.data_ptr<float>(), channels, variance);
  }
  finish_rows(rows, channels, gamma.data_ptr<float>(), beta.data_ptr<float>(), norm.eps);
  return count;
}

void apply_rows(const at::Tensor& y, const at::Tensor& residual, const at::Tensor& out,
                const float* rows, kernels::Act act) {
  const int64_t channels = y.size(1);
  kernels::norm_apply({y.data_ptr(), residual.defined() ? residual.data_ptr() : nullptr,
                       out.data_ptr(), storage_of(y), y.numel() / channels, channels,
                       rows + kScale * channels, rows + kShift * channels, act});
}

void keep_norm(AutogradContext* ctx, const NormArgs& norm, double count, BatchGroup* group) {
  ctx->saved_data["act"] = static_cast<int64_t>(norm.act);
  ctx->saved_data["count"] = count;
  ctx->saved_data["group"] = address_of(group);
  ctx->saved_data["training"] = norm.training;
}

// A max pool behind the activation.
struct Pooled {
  const kernels::MaxPool* shape = nullptr;  // null: there is none
  const uint8_t* index = nullptr;
};

// The way back through the pool, if there is one, the activation and the normalisation of y.
struct NormGradient {
  at::Tensor g;  // behind the activation: also the residual's
  at::Tensor dgamma, dbeta, map;
  kernels::GradSource source{};  // makes the gradient in y; it points into these and into `rows`

  // `out` is defined where a residual hides the sign of what ReLU saw.
  NormGradient(AutogradContext* ctx, const at::Tensor& grad, const at::Tensor& y,
               const at::Tensor& out, const float* rows, const Pooled& pooled = {}) {
    const auto act = static_cast<kernels::Act>(ctx->saved_data["act"].toInt());
    const int64_t channels = y.size(1);
    const float* scale = rows + kScale * channels;
    // Written out where somebody else wants it, or where it is dear to compute twice.
    const bool write_g = out.defined() || is_smooth(act);
    const bool taken = take(ctx, grad);
    source.storage = storage_of(y);
    if (ctx->saved_data.find("in_y") != ctx->saved_data.end()) {
      DUCTILE_CHECK(taken, "the second half of a pass back with another gradient than the first");
      source.grad = y.data_ptr();
      return;
    }
    if (!taken) reduce(ctx, nhwc(grad.to(y.scalar_type())), y, out, rows, act, write_g, pooled);
    float* slope = map.data_ptr<float>();
    float* offset = slope + channels;
    source.grad = g.data_ptr();
    source.y = y.data_ptr();
    source.a = scale;
    source.b = slope;
    source.d = offset;
    source.mean = rows + kMean * channels;
    source.relu = act == kernels::Act::relu && !write_g;
    source.scale = scale;
    source.shift = rows + kShift * channels;
    source.pool = pooled.shape;
    source.index = pooled.index;
  }

  // For a pass back to the weights that comes after one to the input, with the same gradient.
  // `ours`: our kernels do the convolution; in the first of two halves they put the gradient in y
  // in its place, unless it would be rounded there.
  void keep(AutogradContext* ctx, const at::Tensor& grad, const at::Tensor& y, bool ours) {
    const bool in_y = ours && y.scalar_type() == at::kFloat && FirstHalf::begins_with(grad);
    const auto act = static_cast<kernels::Act>(ctx->saved_data["act"].toInt());
    // Of a smooth activation nobody else wants g.
    const at::Tensor& own = in_y && is_smooth(act) ? grad : g;
    ctx->saved_data["kept"] = std::vector<at::Tensor>{grad, own, dgamma, dbeta, map};
    ctx->saved_data["kept_versions"] = versions(grad, own);
    if (!in_y) return;
    source.kept = y.data_ptr<float>();
    ctx->saved_data["in_y"] = true;
  }

 private:
  // As long as it is the same, nobody has written to them.
  static int64_t versions(const at::Tensor& grad, const at::Tensor& g) {
    return static_cast<int64_t>(grad._version()) + static_cast<int64_t>(g._version());
  }

  bool take(AutogradContext* ctx, const at::Tensor& grad) {
    const auto found = ctx->saved_data.find("kept");
    if (found == ctx->saved_data.end()) return false;
    const std::vector<at::Tensor> kept = found->second.toTensorVector();
    if (!kept[0].is_same(grad) ||
        ctx->saved_data["kept_versions"].toInt() != versions(grad, kept[1]))
      return false;
    g = kept[1];
    dgamma = kept[2];
    dbeta = kept[3];
    map = kept[4];
    return true;
  }

  void reduce(AutogradContext* ctx, const at::Tensor& dz, const at::Tensor& y,
              const at::Tensor& out, const float* rows, kernels::Act act, bool write_g,
              const Pooled& pooled) {
    const int64_t channels = y.size(1), pixels = y.numel() / channels;
    const float* inv_std = rows + kInvStd * channels;
    const float* scale = rows + kScale * channels;
    g = write_g ? at::empty_like(dz) : dz;
    dgamma = channel_rows(1, channels).view(channels);
    dbeta = channel_rows(1, channels).view(channels);
    float* sum_gy = dgamma.data_ptr<float>();
    float* sum_g = dbeta.data_ptr<float>();
    const auto sum = [&](const kernels::NormReduce& all) {
      pooled.shape != nullptr ? kernels::norm_reduce_pool(all, *pooled.shape, pooled.index)
                              : kernels::norm_reduce(all);
    };
    sum({dz.data_ptr(), y.data_ptr(), out.defined() ? out.data_ptr() : nullptr,
         write_g ? g.data_ptr() : nullptr, storage_of(y), pixels, channels, scale,
         rows + kShift * channels, act, rows + kMean * channels, sum_g, sum_gy});

    // dy = scale * (g - mean(g) - xhat * mean(g * xhat)), xhat = (y - mean) * inv_std; the means
    // are over all members, the gradients of gamma and beta this member's share. In evaluation mode
    // mean and inv_std do not depend on y, and dy = scale * g.
    const bool training = ctx->saved_data["training"].toBool();
    const double count = ctx->saved_data["count"].toDouble();
    std::vector<double> sums(sum_g, sum_g + channels);
    sums.insert(sums.end(), sum_gy, sum_gy + channels);
    BatchGroup* const group = group_at(ctx->saved_data["group"].toInt());
    if (group != nullptr) group->sum(sums);
    map = channel_rows(2, channels);
    float* slope = map.data_ptr<float>();
    float* offset = slope + channels;
    for (int64_t c = 0; c < channels; ++c) {
      const double per_pixel = training ? static_cast<double>(scale[c]) / count : 0;
      slope[c] = static_cast<float>(-per_pixel * inv_std[c] * inv_std[c] * sums[channels + c]);
      offset[c] = static_cast<float>(-per_pixel * sums[c]);
      sum_gy[c] *= inv_std[c];
    }
  }
};

// A convolution and what normalises its result.
struct Convolved {
  at::Tensor x, stats, y;
  BatchGroup* group;
  double count;

  Convolved(const at::Tensor& x_any, const at::Tensor& w, const at::Tensor& gamma,
            const at::Tensor& beta, const at::Tensor& running_mean, const at::Tensor& running_var,
            int64_t stride, int64_t padding, const NormArgs& norm)
      : x(nhwc(x_any)),
        stats(channel_rows(kForwardRows, w.size(0))),
        group(norm.training ? current_batch_group() : nullptr) {
    const int64_t channels = w.size(0);
    y = convolve(x, w, stride, padding, norm.training ? rows() + kMean * channels : nullptr,
                 norm.training ? rows() + kVariance * channels : nullptr);
    count = settle_rows(rows(), channels, static_cast<double>(y.numel() / channels), gamma, beta,
                        running_mean, running_var, norm, group);
  }
  float* rows() const { return stats.data_ptr<float>(); }
};

struct ConvBnAct : Function<ConvBnAct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& w,
                            const at::Tensor& gamma, const at::Tensor& beta,
                            const Maybe<at::Tensor>& residual_any, const at::Tensor& running_mean,
                            const at::Tensor& running_var, int64_t stride, int64_t padding,
                            const NormArgs& norm, bool keep) {
    const Convolved c(x_any, w, gamma, beta, running_mean, running_var, stride, padding, norm);
    const at::Tensor& y = c.y;
    const at::Tensor residual = residual_any ? nhwc(*residual_any) : at::Tensor();
    const at::Tensor out = keep ? at::empty_like(y) : y;
    apply_rows(y, residual, out, c.rows(), norm.act);
    if (keep) {
      const bool out_gives_mask = residual.defined() && norm.act == kernels::Act::relu;
      ctx->save_for_backward({c.x, w, gamma, y, c.stats, out_gives_mask ? out : at::Tensor()});
      ctx->saved_data["stride"] = stride;
      ctx->saved_data["padding"] = padding;
      ctx->saved_data["residual"] = residual.defined();
      keep_norm(ctx, norm, c.count, c.group);
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &y = saved[3];
    NormGradient norm(ctx, grads[0], y, saved[5], saved[4].data_ptr<float>());
    const int64_t stride = ctx->saved_data["stride"].toInt();
    const int64_t padding = ctx->saved_data["padding"].toInt();
    const bool want_x = ctx->needs_input_grad(0), want_w = ctx->needs_input_grad(1);
    const bool ours = conv_covered(x, w, stride, padding);
    if (want_x && !want_w && w.requires_grad()) norm.keep(ctx, grads[0], y, ours);
    variable_list d = ours ? conv_gradients(x, w, stride, padding, norm.source, want_x, want_w)
                           : aten_gradients(x, w, y, stride, padding, norm.source, want_x, want_w);
    variable_list all(11);
    all[0] = d[0];
    all[1] = d[1];
    all[2] = norm.dgamma;
    all[3] = norm.dbeta;
    if (ctx->saved_data["residual"].toBool()) all[4] = norm.g;
    return all;
  }
};

// The pool of [B,K,H,W] by windows that cover it and do not overlap.
kernels::MaxPool pool_of(kernels::Storage storage, int64_t height, int64_t width, int64_t channels,
                         int64_t kernel) {
  return {storage, height, width, channels, kernel, kernel, 0, height / kernel, width / kernel};
}

// ConvBnAct and such a pool. The whole activation between the two is never in memory, and neither
// is its gradient.
struct ConvBnActPool : Function<ConvBnActPool> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& w,
                            const at::Tensor& gamma, const at::Tensor& beta,
                            const at::Tensor& running_mean, const at::Tensor& running_var,
                            int64_t stride, int64_t padding, const NormArgs& norm, int64_t kernel) {
    const Convolved c(x_any, w, gamma, beta, running_mean, running_var, stride, padding, norm);
    const at::Tensor& y = c.y;
    const int64_t channels = y.size(1);
    const kernels::MaxPool pool = pool_of(storage_of(y), y.size(2), y.size(3), channels, kernel);
    const at::Tensor out = empty_nhwc({y.size(0), channels, pool.out_height, pool.out_width}, y);
    const at::Tensor index = at::empty({out.numel()}, at::TensorOptions(at::kByte));
    kernels::norm_apply_pool(
        {y.data_ptr(), nullptr, nullptr, storage_of(y), y.numel() / channels, channels,
         c.rows() + kScale * channels, c.rows() + kShift * channels, norm.act},
        pool, out.data_ptr(), index.data_ptr<uint8_t>());
    ctx->save_for_backward({c.x, w, y, c.stats, index});
    ctx->saved_data["stride"] = stride;
    ctx->saved_data["padding"] = padding;
    ctx->saved_data["kernel"] = kernel;
    keep_norm(ctx, norm, c.count, c.group);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &y = saved[2];
    const kernels::MaxPool pool =
        pool_of(storage_of(y), y.size(2), y.size(3), y.size(1), ctx->saved_data["kernel"].toInt());
    NormGradient norm(ctx, grads[0], y, {}, saved[3].data_ptr<float>(),
                      {&pool, saved[4].data_ptr<uint8_t>()});
    const bool want_x = ctx->needs_input_grad(0), want_w = ctx->needs_input_grad(1);
    if (want_x && !want_w && w.requires_grad()) norm.keep(ctx, grads[0], y, /*ours=*/true);
    const variable_list d =
        conv_gradients(x, w, ctx->saved_data["stride"].toInt(), ctx->saved_data["padding"].toInt(),
                       norm.source, want_x, want_w);
    return {d[0], d[1], norm.dgamma, norm.dbeta, {}, {}, {}, {}, {}, {}};
  }
};

struct BnAct : Function<BnAct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gamma,
                            const at::Tensor& beta, const at::Tensor& running_mean,
                            const at::Tensor& running_var, const NormArgs& norm, bool keep) {
    const at::Tensor y = nhwc(x);
    const int64_t channels = y.size(1), pixels = y.numel() / channels;
    const at::Tensor stats = channel_rows(kForwardRows, channels);
    float* rows = stats.data_ptr<float>();
    if (norm.training) {
      kernels::channel_statistics(storage_of(y), y.data_ptr(), pixels, channels,
                                  rows + kMean * channels, rows + kVariance * channels);
    }
    BatchGroup* const group = norm.training ? current_batch_group() : nullptr;
    const double count = settle_rows(rows, channels, static_cast<double>(pixels), gamma, beta,
                                     running_mean, running_var, norm, group);
    const at::Tensor out = at::empty_like(y);
    apply_rows(y, {}, out, rows, norm.act);
    if (keep) {
      ctx->save_for_backward({y, stats});
      keep_norm(ctx, norm, count, group);
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& y = saved[0];
    const NormGradient norm(ctx, grads[0], y, {}, saved[1].data_ptr<float>());
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) {
      dx = at::empty_like(y);
      kernels::write_gradient(norm.source, y.numel() / y.size(1), y.size(1), storage_of(y),
                              dx.data_ptr());
    }
    return {dx, norm.dgamma, norm.dbeta, {}, {}, {}, {}};
  }
};

// The rows of act(y + bias): scale 1, shift bias, mean 0.
at::Tensor bias_rows(const at::Tensor& bias) {
  const at::Tensor rows = channel_rows(kForwardRows, bias.numel());
  rows.zero_();
  rows[kScale].fill_(1);
  rows[kShift].copy_(bias);
  return rows;
}

struct BiasAct : Function<BiasAct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& bias,
                            kernels::Act act) {
    const at::Tensor y = nhwc(x), rows = bias_rows(bias), out = at::empty_like(y);
    apply_rows(y, {}, out, rows.data_ptr<float>(), act);
    ctx->save_for_backward({y, rows});
    ctx->saved_data["act"] = static_cast<int64_t>(act);
    ctx->saved_data["type"] = static_cast<int64_t>(bias.scalar_type());
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& y = saved[0];
    const int64_t channels = y.size(1);
    const float* rows = saved[1].data_ptr<float>();
    const at::Tensor dz = nhwc(grads[0].to(y.scalar_type())), g = at::empty_like(dz);
    const at::Tensor sums = channel_rows(2, channels);
    kernels::norm_reduce(
        {dz.data_ptr(), y.data_ptr(), nullptr, g.data_ptr(), storage_of(y), y.numel() / channels,
         channels, rows + kScale * channels, rows + kShift * channels,
         static_cast<kernels::Act>(ctx->saved_data["act"].toInt()), rows + kMean * channels,
         sums[0].data_ptr<float>(), sums[1].data_ptr<float>()});
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type"].toInt());
    return {g, sums[0].to(type), {}};
  }
};

// Whether our kernels can normalise [B,channels,H,W] of the type of x.
bool norm_covered(const at::Tensor& x, int64_t channels, const BatchNorm& bn) {
  return has_storage(x) && x.dim() == 4 && x.numel() > 0 && kernels::isa_for(channels) != nullptr &&
         bn.weight.scalar_type() == at::kFloat && bn.bias.scalar_type() == at::kFloat &&
         bn.running_mean.scalar_type() == at::kFloat && bn.weight.numel() == channels &&
         bn.bias.numel() == channels && bn.running_mean.numel() == channels &&
         bn.running_var.numel() == channels;
}

// Whether a residual may be added as it lies in memory to the convolution of x with w.
bool residual_covered(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& w,
                      int64_t stride, int64_t padding) {
  if (!residual.defined()) return true;
  if (residual.scalar_type() != x.scalar_type() || stride < 1) return false;
  const auto shape = conv_shape(x, w, stride, padding);
  return residual.sizes().vec() ==
         std::vector<int64_t>{shape.batch, shape.out, shape.out_height(), shape.out_width()};
}

}  // namespace

at::Tensor conv_bn_act(const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding,
                       const BatchNorm& bn, const at::Tensor& residual, Activation act,
                       bool training) {
  if (SpatialSplit* split = current_spatial_split())
    return spatial::conv_bn_act(*split, x, w, stride, padding, bn, residual, act, training);
  const bool differentiate = requires_grad({x, w, bn.weight, bn.bias, residual});
  const bool covered = norm_covered(x, w.size(0), bn) && has_storage(w) && w.size(1) == x.size(1) &&
                       w.size(2) == w.size(3) && residual_covered(residual, x, w, stride, padding);
  // The gradient of a smooth activation needs what went into it, of which a residual is a part.
  if (covered && residual.defined() && is_smooth(act_of(act))) {
    const at::Tensor y =
        conv_bn_act(x, w, stride, padding, bn, {}, Activation::none, training).add(residual);
    return BiasAct::apply(y, at::zeros({y.size(1)}, at::kFloat), act_of(act));
  }
  if (covered) {
    return ConvBnAct::apply(x, w, bn.weight, bn.bias, present(residual), bn.running_mean,
                            bn.running_var, stride, padding,
                            NormArgs{bn.momentum, bn.eps, act_of(act), training}, differentiate);
  }
  return bn_act_aten(aten_conv2d(widened(x), widened(w), {}, stride, padding), bn, residual, act,
                     training, x.scalar_type());
}

at::Tensor conv_bn_act_pool(const at::Tensor& x, const at::Tensor& w, int64_t stride,
                            int64_t padding, const BatchNorm& bn, Activation act, bool training,
                            int64_t kernel) {
  if (kernel < 1)
    fail(ErrorCode::invalid_argument, "conv_bn_act_pool: a window of {0} x {0} holds no pixel",
         kernel);
  const bool covered = current_spatial_split() == nullptr && !is_smooth(act_of(act)) &&
                       norm_covered(x, w.size(0), bn) && conv_covered(x, w, stride, padding);
  if (covered) {
    const auto shape = conv_shape(x, w, stride, padding);
    const int64_t height = shape.out_height(), width = shape.out_width();
    if (height % kernel == 0 && width % kernel == 0 &&
        kernels::max_pool_supported(pool_of(storage_of(x), height, width, shape.out, kernel))) {
      return ConvBnActPool::apply(x, w, bn.weight, bn.bias, bn.running_mean, bn.running_var, stride,
                                  padding, NormArgs{bn.momentum, bn.eps, act_of(act), training},
                                  kernel);
    }
  }
  return max_pool2d(conv_bn_act(x, w, stride, padding, bn, {}, act, training), kernel, kernel, 0);
}

at::Tensor bn_act(const at::Tensor& x, const BatchNorm& bn, Activation act, bool training) {
  if (SpatialSplit* split = current_spatial_split())
    return spatial::bn_act(*split, x, bn, act, training);
  const bool differentiate = requires_grad({x, bn.weight, bn.bias});
  if (norm_covered(x, x.size(1), bn)) {
    return BnAct::apply(x, bn.weight, bn.bias, bn.running_mean, bn.running_var,
                        NormArgs{bn.momentum, bn.eps, act_of(act), training}, differentiate);
  }
  return bn_act_aten(widened(x), bn, {}, act, training, x.scalar_type());
}

at::Tensor bias_act(const at::Tensor& x, const at::Tensor& bias, Activation act) {
  if (SpatialSplit* split = current_spatial_split()) return spatial::bias_act(*split, x, bias, act);
  if (has_storage(x) && has_storage(bias) && x.dim() == 4 && x.numel() > 0 &&
      bias.numel() == x.size(1) && kernels::isa_for(x.size(1)) != nullptr) {
    return BiasAct::apply(x, bias, act_of(act));
  }
  const at::Tensor wide = widened(x);
  return activated(wide + bias.to(wide.scalar_type()).view({1, -1, 1, 1}), act).to(x.scalar_type());
}

}  // namespace ductile::nn::ops
