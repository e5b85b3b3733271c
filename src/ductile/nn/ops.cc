#include "ductile/nn/ops.h"

#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/nn/aten_conv.h"
#include "ductile/nn/class_rows_impl.h"
#include "ductile/nn/flops.h"
#include "ductile/nn/kernels/conv.h"
#include "ductile/nn/kernels/pool.h"
#include "ductile/nn/kernels/product.h"
#include "ductile/nn/ops_impl.h"
#include "ductile/nn/precision.h"
#include "ductile/nn/spatial_ops_impl.h"
#include "ductile/nn/threads.h"

namespace ductile::nn::ops {

bool has_storage(const at::Tensor& t) {
  return t.device().is_cpu() && t.layout() == at::kStrided &&
         (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16 ||
          t.scalar_type() == at::kHalf);
}

kernels::Storage storage_of(const at::Tensor& t) {
  if (t.scalar_type() == at::kFloat) return kernels::Storage::f32;
  return t.scalar_type() == at::kBFloat16 ? kernels::Storage::bf16 : kernels::Storage::f16;
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

// Gradients of a convolution in x and w, as far as wanted, from `grad` (see kernels/conv.h).
torch::autograd::variable_list conv_gradients(const at::Tensor& x, const at::Tensor& w,
                                              int64_t stride, int64_t padding,
                                              const kernels::GradSource& grad, bool want_x,
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

bool requires_grad(std::initializer_list<at::Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& t : tensors)
    if (t.defined() && t.requires_grad()) return true;
  return false;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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

struct Subsample : Function<Subsample> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, int64_t stride,
                            int64_t channels) {
    const at::Tensor x = nhwc(x_any);
    const auto shape = shape_of(x, stride, channels);
    const at::Tensor y =
        empty_nhwc({x.size(0), channels, shape.out_height(), shape.out_width()}, x);
    kernels::subsample(shape, x.data_ptr(), y.data_ptr());
    ctx->saved_data["sizes"] = x.sizes();
    ctx->saved_data["stride"] = stride;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor dy = nhwc(grads[0]);
    const at::Tensor dx = empty_nhwc(ctx->saved_data["sizes"].toIntVector(), dy);
    kernels::subsample_grad(shape_of(dx, ctx->saved_data["stride"].toInt(), dy.size(1)),
                            dy.data_ptr(), dx.data_ptr());
    return {dx, {}, {}};
  }

  static kernels::Subsample shape_of(const at::Tensor& x, int64_t stride, int64_t channels) {
    const auto bytes = static_cast<int64_t>(x.element_size());
    return {x.size(0), x.size(2), x.size(3), stride, x.size(1) * bytes, channels * bytes};
  }
};

// [B,C,H,W], pixel by pixel in memory, in the order of its sizes.
struct Flatten : Function<Flatten> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const int64_t channels = x.size(1), pixels = x.size(2) * x.size(3);
    const at::Tensor y = at::empty({x.size(0), channels * pixels}, x.options());
    kernels::transpose_each(x.size(0), x.data_ptr<float>(), pixels, channels, y.data_ptr<float>());
    ctx->saved_data["sizes"] = x.sizes();
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor dy = grads[0].contiguous();
    const at::Tensor dx = empty_nhwc(ctx->saved_data["sizes"].toIntVector(), dy);
    kernels::transpose_each(dx.size(0), dy.data_ptr<float>(), dx.size(1), dx.size(2) * dx.size(3),
                            dx.data_ptr<float>());
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
    at::Tensor loss = plain_class_rows(log_p, labels)
                          ? scores_of_labels(log_p, labels, static_cast<float>(smoothing - 1))
                          : log_p.gather(1, labels.unsqueeze(1)).squeeze(1).mul_(smoothing - 1);
    if (smoothing != 0) loss.sub_(mean_of_rows(log_p), smoothing);
    ctx->save_for_backward({log_p, labels});
    ctx->saved_data["smoothing"] = smoothing;
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const double smoothing = ctx->saved_data["smoothing"].toDouble();
    at::Tensor d = saved[0].exp();
    if (smoothing != 0) d.sub_(smoothing / static_cast<double>(d.size(1)));
    if (grads[0].scalar_type() == at::kFloat && plain_class_rows(d, saved[1])) {
      shift_labels_and_scale(d, saved[1], static_cast<float>(smoothing - 1), grads[0]);
      return {d, {}, {}};
    }
    const at::Tensor labels = saved[1].unsqueeze(1), scale = grads[0].unsqueeze(1);
    d.scatter_add_(1, labels, at::full_like(labels, smoothing - 1, d.options()));
    return {d.mul_(scale), {}, {}};
  }
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

at::Tensor max_pool2d(const at::Tensor& x, int64_t kernel, int64_t stride, int64_t padding) {
  if (SpatialSplit* split = current_spatial_split())
    return spatial::max_pool2d(*split, x, kernel, stride, padding);
  // ATen refuses what has no sense.
  if (has_storage(x) && x.dim() == 4 && x.size(0) > 0 && stride >= 1 &&
      x.size(2) + 2 * padding >= kernel && x.size(3) + 2 * padding >= kernel &&
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

at::Tensor subsample(const at::Tensor& x, int64_t stride, int64_t channels) {
  const int64_t more = channels == 0 ? 0 : channels - x.size(1);
  SpatialSplit* const split = current_spatial_split();
  if (split == nullptr && has_storage(x) && x.dim() == 4 && more >= 0)
    return Subsample::apply(x, stride, x.size(1) + more);
  const at::Tensor taken = split != nullptr
                               ? spatial::subsample(*split, x, stride)
                               : x.slice(2, 0, x.size(2), stride).slice(3, 0, x.size(3), stride);
  return more == 0 ? taken : at::constant_pad_nd(taken, {0, 0, 0, 0, 0, more}, 0);
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

at::Tensor flatten(const at::Tensor& x) {
  const bool by_pixel = has_storage(x) && x.dim() == 4 && x.scalar_type() == at::kFloat &&
                        !x.is_contiguous() && x.is_contiguous(at::MemoryFormat::ChannelsLast);
  return by_pixel ? Flatten::apply(x) : x.flatten(1);
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
