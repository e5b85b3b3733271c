#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ductile/nn/halo.h"
#include "ductile/nn/spatial_ops_impl.h"

namespace ductile::nn::spatial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

int64_t as_int(SpatialSplit& split) { return reinterpret_cast<int64_t>(&split); }
SpatialSplit& as_split(const c10::IValue& v) { return *reinterpret_cast<SpatialSplit*>(v.toInt()); }

// The pixels under a window, and the size of what it makes of them.
struct Windowed {
  at::Tensor pixels;
  WholeSize out;
};

Windowed fetch_window(SpatialSplit& split, const at::Tensor& x, int64_t kernel, int64_t stride,
                      int64_t padding, double fill) {
  const WholeSize whole = whole_size(split, x);
  const CutAxis rows = cut_window(whole.height, split.rows(), kernel, stride, padding);
  const CutAxis cols = cut_window(whole.width, split.cols(), kernel, stride, padding);
  return {fetch(split, x, rows, cols, fill), {rows.out_size, cols.out_size}};
}

// Sums over the cells, in double: sum over cells of scale * x, on every cell.
at::Tensor sum_over_cells(SpatialSplit& split, const at::Tensor& x, double scale) {
  const at::Tensor sums = x.to(at::kDouble).mul(scale).contiguous();
  split.sum({sums.data_ptr<double>(), static_cast<size_t>(sums.numel())});
  return sums.to(x.scalar_type());
}

// The mean of the cells' means; each has a share in the pixels. Its transpose is itself.
struct WeightedMean : Function<WeightedMean> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, SpatialSplit& split,
                            double share) {
    ctx->saved_data["split"] = as_int(split);
    ctx->saved_data["share"] = share;
    return sum_over_cells(split, x, share);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor sum = sum_over_cells(as_split(ctx->saved_data["split"]), grads[0], 1.0);
    return {sum.mul(ctx->saved_data["share"].toDouble()), {}, {}};
  }
};

struct ScaledGradient : Function<ScaledGradient> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double scale) {
    ctx->saved_data["scale"] = scale;
    return x.view_as(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {grads[0].mul(ctx->saved_data["scale"].toDouble()), {}};
  }
};

}  // namespace

at::Tensor conv2d(SpatialSplit& split, const at::Tensor& x, const at::Tensor& w,
                  const at::Tensor& bias, int64_t stride, int64_t padding) {
  const Windowed seen = fetch_window(split, x, w.size(2), stride, padding, 0);
  const SpatialScope local(nullptr);
  return remember(split, ops::conv2d(seen.pixels, w, bias, stride, 0), seen.out);
}

at::Tensor conv_bn_act(SpatialSplit& split, const at::Tensor& x, const at::Tensor& w,
                       int64_t stride, int64_t padding, const ops::BatchNorm& bn,
                       const at::Tensor& residual, ops::Activation act, bool training) {
  const Windowed seen = fetch_window(split, x, w.size(2), stride, padding, 0);
  const SpatialScope local(nullptr);  // the batch group stays
  return remember(split, ops::conv_bn_act(seen.pixels, w, stride, 0, bn, residual, act, training),
                  seen.out);
}

at::Tensor bn_act(SpatialSplit& split, const at::Tensor& x, const ops::BatchNorm& bn,
                  ops::Activation act, bool training) {
  const WholeSize whole = whole_size(split, x);
  const SpatialScope local(nullptr);  // the batch group stays
  return remember(split, ops::bn_act(x, bn, act, training), whole);
}

at::Tensor bias_act(SpatialSplit& split, const at::Tensor& x, const at::Tensor& bias,
                    ops::Activation act) {
  const WholeSize whole = whole_size(split, x);
  const SpatialScope local(nullptr);
  return remember(split, ops::bias_act(x, bias, act), whole);
}

at::Tensor max_pool2d(SpatialSplit& split, const at::Tensor& x, int64_t kernel, int64_t stride,
                      int64_t padding) {
  const Windowed seen =
      fetch_window(split, x, kernel, stride, padding, -std::numeric_limits<double>::infinity());
  const SpatialScope local(nullptr);
  return remember(split, ops::max_pool2d(seen.pixels, kernel, stride, 0), seen.out);
}

at::Tensor global_avg_pool(SpatialSplit& split, const at::Tensor& x) {
  const WholeSize whole = whole_size(split, x);
  const double share =
      static_cast<double>(x.size(2) * x.size(3)) / static_cast<double>(whole.height * whole.width);
  const SpatialScope local(nullptr);
  return WeightedMean::apply(ops::global_avg_pool(x), split, share);
}

at::Tensor subsample(SpatialSplit& split, const at::Tensor& x, int64_t stride) {
  const Windowed seen = fetch_window(split, x, 1, stride, 0, 0);
  const SpatialScope local(nullptr);
  return remember(split, ops::subsample(seen.pixels, stride), seen.out);
}

at::Tensor upsample_twice(SpatialSplit& split, const at::Tensor& x) {
  const WholeSize whole = whole_size(split, x);
  const CutAxis rows = cut_twice(whole.height, split.rows());
  const CutAxis cols = cut_twice(whole.width, split.cols());
  const at::Tensor seen = fetch(split, x, rows, cols, 0);
  const SpatialScope local(nullptr);
  const at::Tensor y = ops::upsample_twice(seen);
  const int row = split.cell() / split.cols(), col = split.cell() % split.cols();
  const Range h = rows.out[row], w = cols.out[col];
  // A pixel of which only one copy is the own part's was fetched whole.
  const at::Tensor own = y.narrow(2, h.begin - 2 * rows.need[row].begin, h.size())
                             .narrow(3, w.begin - 2 * cols.need[col].begin, w.size())
                             .contiguous(at::MemoryFormat::ChannelsLast);
  return remember(split, own, {rows.out_size, cols.out_size});
}

at::Tensor whole_image(SpatialSplit& split, const at::Tensor& x) {
  const WholeSize whole = whole_size(split, x);
  return fetch(split, x, cut_whole(whole.height, split.rows()),
               cut_whole(whole.width, split.cols()), 0);
}

at::Tensor shared_by_cells(SpatialSplit& split, const at::Tensor& x) {
  return split.num_cells() == 1 ? x : ScaledGradient::apply(x, 1.0 / split.num_cells());
}

}  // namespace ductile::nn::spatial
