#include "ductile/parallel/spatial_split.h"

#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "ductile/base/error.h"
#include "ductile/comm/testing/rank_threads.h"
#include "ductile/nn/halo.h"
#include "ductile/nn/ops.h"

namespace ductile::parallel {
namespace {

using at::Tensor;
namespace ops = nn::ops;

// oneDNN 2.6 corrupts its primitives when several threads make some at once, as ranks that are
// threads do; ranks that are processes, as in real jobs, have one each.
class Spatial : public ::testing::Test {
 protected:
  void SetUp() override { at::globalContext().setUserEnabledMkldnn(false); }
  void TearDown() override { at::globalContext().setUserEnabledMkldnn(true); }
};

Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(); }

// Relative to the largest value, or to `least`, where that is more.
double error(const Tensor& got, const Tensor& want, double least = 1e-30) {
  if (got.sizes() != want.sizes()) return 1e30;
  if (got.numel() == 0) return 0;
  const double scale = std::max(want.abs().max().item<double>(), least);
  return (got.to(at::kDouble) - want).abs().max().item<double>() / scale;
}

// What an operator takes: images are cut, parameters are the same everywhere.
struct Operands {
  std::vector<Tensor> images, parameters;
};
using Operator = std::function<Tensor(const Operands&)>;

struct Grid {
  int rows, cols;
};
const std::vector<Grid> kGrids = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}, {3, 2}};

Operands converted(const Operands& o, at::ScalarType type,
                   const std::function<Tensor(const Tensor&)>& image) {
  Operands all;
  for (const Tensor& t : o.images) all.images.push_back(leaf(image(t).to(type)));
  for (const Tensor& t : o.parameters) all.parameters.push_back(leaf(t.to(type)));
  return all;
}

// Runs `op` on whole images in double, and cut over the grid in `type`; values and all gradients
// must agree. `cut`: the result is an activation, else it is the same on every cell.
void expect_equal_to_whole(const Grid& grid, const Operands& given, const Operator& op, bool cut,
                           at::ScalarType type, double tolerance) {
  const Operands whole = converted(given, at::kDouble, [](const Tensor& t) { return t; });
  const Tensor want = op(whole);
  const Tensor d_want = at::rand_like(want) - 0.4;
  want.backward(d_want);
  // Parameters' gradients are sums over pixels, which may happen to cancel.
  const double typical_sum = 0.1 * std::sqrt(static_cast<double>(d_want.numel()));

  comm::run_ranks(grid.rows * grid.cols, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    CommunicatorSplit split(communicator, grid.rows, grid.cols);
    const auto part = [&](const Tensor& t) { return nn::own_part(split, t); };
    const Operands own = converted(given, type, part);
    Tensor got;
    {
      const nn::SpatialScope scope(&split);
      got = op(own);
    }
    EXPECT_EQ(nn::current_spatial_split(), nullptr);
    EXPECT_LT(error(got.detach(), cut ? part(want.detach()) : want.detach()), tolerance) << "value";
    got.backward((cut ? part(d_want) : d_want / split.num_cells()).to(type));
    for (size_t i = 0; i < own.images.size(); ++i)
      EXPECT_LT(error(own.images[i].grad(), part(whole.images[i].grad())), tolerance)
          << "gradient of image " << i;
    std::vector<Tensor> gradients;
    for (const Tensor& p : own.parameters) gradients.push_back(p.grad());
    sum_gradients(communicator, gradients);
    for (size_t i = 0; i < gradients.size(); ++i)
      EXPECT_LT(error(gradients[i], whole.parameters[i].grad(), typical_sum), tolerance)
          << "gradient of parameter " << i;
  });
}

void expect_equal_to_whole(const Grid& grid, const Operands& given, const Operator& op,
                           bool cut = true) {
  expect_equal_to_whole(grid, given, op, cut, at::kDouble, 1e-11);
  expect_equal_to_whole(grid, given, op, cut, at::kFloat, 1e-5);
}

Tensor image(int64_t batch, int64_t channels, int64_t height, int64_t width) {
  return (at::rand({batch, channels, height, width}, at::kDouble) - 0.5)
      .contiguous(at::MemoryFormat::ChannelsLast);
}

struct Window {
  int64_t kernel, stride, padding, batch, in, out, height, width;

  int64_t along(int64_t n) const {
    return n + 2 * padding < kernel ? 0 : (n + 2 * padding - kernel) / stride + 1;
  }
};

// Sizes that no grid divides, kernels larger than a tile, out channels for both kinds of kernels.
Window any_window(const std::vector<int64_t>& kernels, bool pool) {
  Window w;
  w.kernel = *rc::gen::elementOf(kernels);
  w.stride = *rc::gen::element<int64_t>(1, 2, 2, 3);
  w.padding =
      *rc::gen::resize(100, rc::gen::inRange<int64_t>(0, (pool ? w.kernel / 2 : w.kernel - 1) + 1));
  w.batch = *rc::gen::element<int64_t>(1, 2, 3);
  w.in = *rc::gen::element<int64_t>(1, 3, 8, 16);
  w.out = *rc::gen::element<int64_t>(2, 8, 16);
  w.height = *rc::gen::resize(100, rc::gen::inRange<int64_t>(1, 24));
  w.width = *rc::gen::resize(100, rc::gen::inRange<int64_t>(1, 24));
  return w;
}

// Cuts images for which the operator leaves every cell a pixel; the others must be refused.
// in_float: whether float can be expected to take the same branches as double.
void check(const Window& w, const Grid& grid, const Operands& o, const Operator& op,
           bool in_float = true) {
  RC_LOG() << w.kernel << "x" << w.kernel << "/" << w.stride << "+" << w.padding << " " << w.in
           << "->" << w.out << " of " << w.batch << "x" << w.height << "x" << w.width << " on "
           << grid.rows << "x" << grid.cols << std::endl;
  if (w.along(w.height) >= grid.rows && w.along(w.width) >= grid.cols) {
    expect_equal_to_whole(grid, o, op, true, at::kDouble, 1e-11);
    if (in_float) expect_equal_to_whole(grid, o, op, true, at::kFloat, 1e-5);
    RC_ASSERT(!::testing::Test::HasFailure());
    return;
  }
  if (grid.rows * grid.cols == 1) return;  // whole images: libtorch's business
  comm::run_ranks(grid.rows * grid.cols, [&](comm::Communicator& communicator) {
    CommunicatorSplit split(communicator, grid.rows, grid.cols);
    const nn::SpatialScope scope(&split);
    try {
      op(converted(o, at::kFloat, [&](const Tensor& t) { return nn::own_part(split, t); }));
      ADD_FAILURE() << "not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument) << e.what();
    }
  });
}

RC_GTEST_FIXTURE_PROP(Spatial, ConvolutionsEqualThoseOfWholeImages, ()) {
  const Window w = any_window({1, 3, 5, 7}, false);
  const bool biased = *rc::gen::arbitrary<bool>();
  Operands o{{image(w.batch, w.in, w.height, w.width)},
             {at::randn({w.out, w.in, w.kernel, w.kernel}, at::kDouble) * 0.3}};
  if (biased) o.parameters.push_back(at::randn({w.out}, at::kDouble));
  check(w, *rc::gen::elementOf(kGrids), o, [&](const Operands& p) {
    return ops::conv2d(p.images[0], p.parameters[0], biased ? p.parameters[1] : Tensor(), w.stride,
                       w.padding);
  });
}

RC_GTEST_FIXTURE_PROP(Spatial, ConvolutionsWithBatchNormEqualThoseOfWholeImages, ()) {
  Window w = any_window({1, 3, 5, 7}, false);
  const bool relu = *rc::gen::arbitrary<bool>(), residual = *rc::gen::arbitrary<bool>();
  const int64_t height = w.along(w.height), width = w.along(w.width);
  // Behind a normalisation the gradient of a filter of one weight is nothing but rounding.
  RC_PRE(w.batch * height * width >= 12);
  RC_PRE(w.in * w.kernel > 1);
  Operands o{{image(w.batch, w.in, w.height, w.width)},
             {at::randn({w.out, w.in, w.kernel, w.kernel}, at::kDouble) * 0.3,
              at::rand({w.out}, at::kDouble) + 0.5, at::randn({w.out}, at::kDouble)}};
  if (residual) o.images.push_back(image(w.batch, w.out, height, width));
  const auto block = [&](const Operands& p, bool with_relu) {
    const auto type = p.parameters[1].options().requires_grad(false);
    const ops::BatchNorm bn{p.parameters[1], p.parameters[2], at::zeros({w.out}, type),
                            at::ones({w.out}, type)};
    return ops::conv_bn_act(p.images[0], p.parameters[0], w.stride, w.padding, bn,
                            residual ? p.images[1] : Tensor(),
                            with_relu ? ops::Activation::relu : ops::Activation::none, true);
  };
  // Statistics over a few values amplify every rounding.
  const bool amplified = w.batch * height * width < 100;
  const bool kinks = relu && block(o, false).abs().min().item<double>() < 1e-4;
  check(
      w, *rc::gen::elementOf(kGrids), o, [&](const Operands& p) { return block(p, relu); },
      !amplified && !kinks);
}

RC_GTEST_FIXTURE_PROP(Spatial, MaxPoolingEqualsThatOfWholeImages, ()) {
  const Window w = any_window({1, 2, 3, 5}, true);
  check(w, *rc::gen::elementOf(kGrids), {{image(w.batch, w.in, w.height, w.width)}, {}},
        [&](const Operands& p) {
          return ops::max_pool2d(p.images[0], w.kernel, w.stride, w.padding);
        });
}

RC_GTEST_FIXTURE_PROP(Spatial, TheOtherOperatorsEqualThoseOfWholeImages, ()) {
  const Grid grid = *rc::gen::elementOf(kGrids);
  const auto height = *rc::gen::inRange<int64_t>(grid.rows, 14);
  const auto width = *rc::gen::inRange<int64_t>(grid.cols, 14);
  const int64_t channels = *rc::gen::element<int64_t>(3, 8);
  const Operands o{{image(2, channels, height, width)}, {}};
  expect_equal_to_whole(
      grid, o, [](const Operands& p) { return ops::global_avg_pool(p.images[0]); }, false);
  expect_equal_to_whole(grid, o,
                        [](const Operands& p) { return ops::upsample_twice(p.images[0]); });
  const Operands normed{
      {image(4, channels, height, width)},
      {at::rand({channels}, at::kDouble) + 0.5, at::randn({channels}, at::kDouble)}};
  const auto normalise = [&](const Operands& p) {
    const auto type = p.parameters[0].options().requires_grad(false);
    const ops::BatchNorm bn{p.parameters[0], p.parameters[1], at::zeros({channels}, type),
                            at::ones({channels}, type)};
    return ops::bn_act(p.images[0], bn, ops::Activation::silu, true);
  };
  // Statistics over a few values amplify every rounding.
  const bool amplified = 4 * height * width < 100;
  expect_equal_to_whole(grid, normed, normalise, true, at::kDouble, 1e-10);
  if (!amplified) expect_equal_to_whole(grid, normed, normalise, true, at::kFloat, 1e-5);
  const Operands biased{normed.images, {normed.parameters[1]}};
  expect_equal_to_whole(grid, biased, [](const Operands& p) {
    return ops::bias_act(p.images[0], p.parameters[0], ops::Activation::gelu);
  });
  expect_equal_to_whole(
      grid, o, [](const Operands& p) { return ops::whole_image(p.images[0]) * 2; }, false);
  const auto stride = *rc::gen::inRange<int64_t>(1, 4);
  if ((height - 1) / stride + 1 >= grid.rows && (width - 1) / stride + 1 >= grid.cols)
    expect_equal_to_whole(grid, o,
                          [&](const Operands& p) { return ops::subsample(p.images[0], stride); });
  RC_ASSERT(!::testing::Test::HasFailure());
}

}  // namespace
}  // namespace ductile::parallel
