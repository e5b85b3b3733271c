#include "ductile/nn/kernels/conv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/nn/kernels/conv_impl.h"
#include "ductile/nn/kernels/test_data.h"

namespace ductile::nn::kernels {
namespace {

struct Results {
  std::vector<float> y, dx, dw, mean, variance;
};

int64_t inputs(const ConvShape& s) { return s.batch * s.height * s.width * s.in; }
int64_t outputs(const ConvShape& s) { return s.out_pixels() * s.out; }
int64_t weights(const ConvShape& s) { return s.out * s.in * s.kernel * s.kernel; }

// The slow obvious twin: seven loops in double.
struct Twin {
  std::vector<double> y, dx, dw, mean, variance;

  Twin(const ConvShape& s, const std::vector<float>& x, const std::vector<float>& w,
       const std::vector<float>& g)
      : y(outputs(s)), dx(inputs(s)), dw(weights(s)), mean(s.out), variance(s.out) {
    const int64_t oh = s.out_height(), ow = s.out_width();
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t i = 0; i < oh; ++i)
        for (int64_t j = 0; j < ow; ++j)
          for (int64_t o = 0; o < s.out; ++o)
            for (int64_t p = 0; p < s.kernel; ++p)
              for (int64_t q = 0; q < s.kernel; ++q)
                for (int64_t c = 0; c < s.in; ++c) {
                  const int64_t row = i * s.stride + p - s.padding;
                  const int64_t col = j * s.stride + q - s.padding;
                  if (row < 0 || col < 0 || row >= s.height || col >= s.width) continue;
                  const int64_t at_y = ((b * oh + i) * ow + j) * s.out + o;
                  const int64_t at_x = ((b * s.height + row) * s.width + col) * s.in + c;
                  const int64_t at_w = ((o * s.in + c) * s.kernel + p) * s.kernel + q;
                  y[at_y] += static_cast<double>(x[at_x]) * w[at_w];
                  dx[at_x] += static_cast<double>(g[at_y]) * w[at_w];
                  dw[at_w] += static_cast<double>(g[at_y]) * x[at_x];
                }
    const int64_t n = s.out_pixels();
    for (int64_t o = 0; o < s.out; ++o) {
      for (int64_t i = 0; i < n; ++i) mean[o] += y[i * s.out + o] / static_cast<double>(n);
      for (int64_t i = 0; i < n; ++i)
        variance[o] += std::pow(y[i * s.out + o] - mean[o], 2) / static_cast<double>(n);
    }
  }
};

GradSource plain(const void* grad, Storage storage) {
  GradSource source{};
  source.grad = grad;
  source.storage = storage;
  return source;
}

// Through the storage type: the inputs are rounded to it first, the outputs read back from it.
Results run(const ConvShape& s, Storage storage, const std::vector<float>& x,
            const std::vector<float>& w, const std::vector<float>& g) {
  Results r;
  const auto stored_x = stored(x, storage), stored_g = stored(g, storage);
  std::vector<char> y(outputs(s) * bytes_of(storage)), dx(inputs(s) * bytes_of(storage));
  r.mean.resize(s.out);
  r.variance.resize(s.out);
  r.dw.resize(weights(s));
  conv_forward(s, stored_x.data(), w.data(), storage, y.data(), r.mean.data(), r.variance.data());
  conv_backward(s, stored_x.data(), w.data(), plain(stored_g.data(), storage), dx.data(),
                r.dw.data());
  r.y = read(y, storage);
  r.dx = read(dx, storage);
  return r;
}

void expect_equals_twin(const ConvShape& s, Storage storage, double tolerance,
                        double sums_tolerance = 1e-5) {
  SCOPED_TRACE(::testing::Message() << "batch " << s.batch << ", " << s.height << "x" << s.width
                                    << ", " << s.in << "->" << s.out << ", kernel " << s.kernel
                                    << ", stride " << s.stride << ", padding " << s.padding);
  const auto x = rounded(normals(1, inputs(s)), storage),
             w = rounded(normals(2, weights(s)), storage);
  const auto g = rounded(normals(3, outputs(s)), storage);
  const Results ours = run(s, storage, x, w, g);
  const Twin twin(s, x, w, g);
  EXPECT_LT(relative_error(ours.y, twin.y), tolerance);
  EXPECT_LT(relative_error(ours.dx, twin.dx), tolerance);
  EXPECT_LT(relative_error(ours.dw, twin.dw), sums_tolerance);
  EXPECT_LT(relative_error(ours.mean, twin.mean), sums_tolerance);
  EXPECT_LT(relative_error(ours.variance, twin.variance), sums_tolerance);
}

class Conv : public ::testing::Test {
 protected:
  void SetUp() override {
    if (isa_for(8) == nullptr) GTEST_SKIP() << "this processor has no AVX2: ATen does the work";
    threads_ = omp_get_max_threads();
  }
  void TearDown() override {
    if (threads_ > 0) omp_set_num_threads(threads_);
  }

 private:
  int threads_ = 0;
};

TEST_F(Conv, EqualsTheTwinOnTheShapesOfTheZoo) {
  for (const ConvShape& s : {ConvShape{2, 32, 32, 3, 16, 3, 1, 1},
                             {1, 32, 32, 16, 16, 3, 1, 1},
                             {2, 32, 32, 16, 32, 3, 2, 1},
                             {3, 16, 16, 32, 32, 3, 1, 1},
                             {2, 16, 16, 32, 64, 3, 2, 1},
                             {7, 8, 8, 64, 64, 3, 1, 1},
                             {2, 16, 16, 32, 64, 1, 2, 0},
                             {2, 28, 28, 1, 16, 3, 1, 1},
                             {2, 14, 14, 16, 32, 3, 1, 1},
                             {1, 33, 33, 3, 16, 7, 2, 3}})
    expect_equals_twin(s, Storage::f32, 1e-5);
}

TEST_F(Conv, EqualsTheTwinOnOddShapes) {
  for (const ConvShape& s : {ConvShape{1, 1, 1, 8, 8, 3, 1, 1},
                             {2, 1, 1, 16, 8, 1, 1, 0},
                             {1, 2, 3, 8, 24, 3, 1, 1},
                             {5, 7, 5, 24, 8, 3, 1, 0},
                             {1, 5, 9, 8, 16, 3, 1, 2},
                             {3, 6, 11, 5, 8, 3, 1, 1},
                             {2, 7, 7, 9, 40, 3, 2, 1},
                             {2, 8, 5, 7, 16, 5, 3, 2},
                             {1, 3, 3, 8, 8, 3, 1, 0},
                             {20, 4, 4, 40, 56, 3, 1, 1},
                             // Panels of channels on both sides, on one, and none.
                             {40, 5, 7, 96, 64, 3, 1, 1},
                             {6, 31, 9, 24, 64, 3, 1, 1},
                             {5, 6, 6, 128, 40, 3, 1, 1},
                             // Filters' gradients over all tiles at once: one block of groups and
                             // a last one that is not full, groups of an odd number of tiles.
                             {69, 5, 7, 96, 96, 3, 1, 1},
                             {37, 3, 3, 96, 128, 3, 1, 1},
                             {3, 13, 9, 104, 96, 3, 1, 0},
                             {18, 33, 31, 24, 384, 3, 1, 1},
                             {14, 40, 37, 96, 96, 3, 1, 1},
                             {1, 4, 4, 96, 96, 3, 1, 2}})
    expect_equals_twin(s, Storage::f32, 1e-5);
}

RC_GTEST_PROP(ConvProperty, EqualsTheTwinOnRandomShapes, ()) {
  RC_PRE(isa_for(8) != nullptr);
  ConvShape s{};
  s.kernel = *rc::gen::inRange<int64_t>(1, 5);
  s.padding = *rc::gen::inRange<int64_t>(0, s.kernel);
  s.stride = *rc::gen::inRange<int64_t>(1, 4);
  s.batch = *rc::gen::inRange<int64_t>(1, 4);
  s.height = *rc::gen::inRange<int64_t>(s.kernel, 12);
  s.width = *rc::gen::inRange<int64_t>(s.kernel, 12);
  s.in = *rc::gen::inRange<int64_t>(1, 20);
  s.out = 8 * *rc::gen::inRange<int64_t>(1, 5);
  RC_ASSERT(conv_supported(s));
  expect_equals_twin(s, Storage::f32, 1e-5);
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST_F(Conv, RoundsOnceToTheStorageType) {
  for (const ConvShape& s : {ConvShape{3, 9, 8, 16, 16, 3, 1, 1},
                             {3, 9, 8, 16, 24, 3, 2, 1},
                             {2, 9, 9, 12, 40, 3, 2, 1},
                             {1, 32, 32, 3, 16, 7, 2, 3},
                             {2, 7, 5, 8, 16, 1, 2, 0},
                             {2, 8, 6, 10, 8, 2, 3, 1},
                             {2, 6, 7, 3, 8, 3, 1, 1}}) {
    expect_equals_twin(s, Storage::bf16, 1.0 / 256);
    expect_equals_twin(s, Storage::f16, 1.0 / 2048);
  }
}

// Where products are of bf16 values, transformed tiles and filters are rounded to them.
TEST_F(Conv, MultipliesWideLayersInBf16WhereTheProcessorDoes) {
  const double tolerance = bf16_isa_for(8) != nullptr ? 1.0 / 32 : 1.0 / 256;
  for (const ConvShape& s : {ConvShape{5, 9, 8, 32, 40, 3, 1, 1},
                             {3, 7, 7, 24, 64, 3, 1, 0},
                             {20, 3, 3, 64, 96, 3, 1, 1},
                             {69, 3, 3, 96, 96, 3, 1, 1},
                             {18, 10, 11, 96, 128, 3, 1, 1}}) {
    expect_equals_twin(s, Storage::bf16, tolerance, tolerance);
    expect_equals_twin(s, Storage::f32, 1e-5);
  }
}

TEST_F(Conv, GivesTheSameBitsForEveryNumberOfThreads) {
  for (const ConvShape& s : {ConvShape{37, 9, 8, 16, 16, 3, 1, 1},
                             {29, 8, 8, 40, 32, 3, 1, 1},
                             {9, 8, 8, 24, 96, 3, 1, 1},
                             {39, 9, 7, 96, 96, 3, 1, 1},
                             {19, 9, 8, 16, 24, 3, 2, 1},
                             {18, 6, 7, 3, 8, 3, 1, 1}}) {
    for (const Storage storage : {Storage::f32, Storage::bf16}) {
      const auto x = normals(1, inputs(s)), w = normals(2, weights(s)), g = normals(3, outputs(s));
      omp_set_num_threads(1);
      const Results one = run(s, storage, x, w, g);
      for (const int threads : {2, 3, 7}) {
        omp_set_num_threads(threads);
        const Results many = run(s, storage, x, w, g);
        EXPECT_EQ(one.y, many.y);
        EXPECT_EQ(one.dx, many.dx);
        EXPECT_EQ(one.dw, many.dw);
        EXPECT_EQ(one.mean, many.mean);
        EXPECT_EQ(one.variance, many.variance);
      }
    }
  }
}

TEST_F(Conv, GivesTheVarianceOfValuesFarFromZero) {
  const ConvShape s{16, 8, 8, 8, 8, 1, 1, 0};
  auto x = normals(1, inputs(s));
  for (float& v : x) v = 1000 + v;
  std::vector<float> w(weights(s), 0);
  for (int64_t o = 0; o < 8; ++o) w[o * 8 + o] = 1;
  const Results r = run(s, Storage::f32, x, w, std::vector<float>(outputs(s), 0));
  const Twin twin(s, x, w, std::vector<float>(outputs(s), 0));
  EXPECT_LT(relative_error(r.variance, twin.variance), 1e-4);
}

TEST_F(Conv, LeavesOutTheGradientThatIsNotWanted) {
  for (const ConvShape& s : {ConvShape{5, 6, 6, 16, 16, 3, 1, 1}, {5, 6, 6, 96, 96, 3, 1, 1}}) {
    const auto x = normals(1, inputs(s)), w = normals(2, weights(s)), g = normals(3, outputs(s));
    const Results both = run(s, Storage::f32, x, w, g);
    std::vector<float> dx(inputs(s)), dw(weights(s));
    conv_backward(s, x.data(), w.data(), plain(g.data(), Storage::f32), dx.data(), nullptr);
    conv_backward(s, x.data(), w.data(), plain(g.data(), Storage::f32), nullptr, dw.data());
    EXPECT_EQ(dx, both.dx);
    EXPECT_EQ(dw, both.dw);
  }
}

// Few inputs: all of the filter's gradient in one product. With inputs that are zero beside them it
// is made row by row, of the same sums.
TEST_F(Conv, MakesTheGradientOfFewInputsWithTheBitsOfSingleRows) {
  for (const ConvShape& s : {ConvShape{5, 28, 28, 1, 16, 3, 1, 1},
                             {3, 9, 11, 1, 40, 5, 2, 2},
                             {2, 8, 7, 2, 24, 3, 1, 0},
                             {2, 13, 13, 1, 8, 7, 3, 3}}) {
    ConvShape more = s;
    more.in = 9;
    const auto x = normals(1, inputs(s)), g = normals(3, outputs(s));
    std::vector<float> wide(inputs(more), 0.0F), dw(weights(s)), dw_wide(weights(more));
    for (int64_t i = 0; i < inputs(s); ++i) wide[i / s.in * more.in + i % s.in] = x[i];
    const auto gradient = [&](const ConvShape& shape, const std::vector<float>& from,
                              std::vector<float>& to) {
      const std::vector<float> w(weights(shape), 0.0F);
      conv_backward(shape, from.data(), w.data(), plain(g.data(), Storage::f32), nullptr,
                    to.data());
    };
    gradient(s, x, dw);
    gradient(more, wide, dw_wide);
    const int64_t taps = s.kernel * s.kernel;
    for (int64_t i = 0; i < weights(s); ++i) {
      const int64_t o = i / (s.in * taps), rest = i % (s.in * taps);
      ASSERT_EQ(dw[i], dw_wide[o * more.in * taps + rest]) << i << " of kernel " << s.kernel;
    }
  }
}

TEST_F(Conv, RefusesWhatItCannotDo) {
  EXPECT_FALSE(conv_supported({1, 8, 8, 8, 12, 3, 1, 1}));  // outputs not in multiples of 8
  EXPECT_FALSE(conv_supported({1, 1, 8, 8, 8, 3, 1, 0}));   // kernel higher than the image
  EXPECT_FALSE(conv_supported({0, 8, 8, 8, 8, 3, 1, 1}));
  EXPECT_FALSE(conv_supported({1, 8, 8, 8, 8, 3, 1, 3}));  // padding beyond the kernel
}

TEST_F(Conv, LeavesWideLayersToOneDnn) {
  EXPECT_TRUE(conv_preferred({128, 8, 8, 64, 64, 3, 1, 1}));
  EXPECT_TRUE(conv_preferred({128, 16, 16, 32, 64, 3, 2, 1}));
  EXPECT_TRUE(conv_preferred({8, 224, 224, 3, 64, 7, 2, 3}));
  EXPECT_TRUE(conv_preferred({64, 7, 7, 512, 512, 3, 1, 1}));
  EXPECT_FALSE(conv_preferred({8, 7, 7, 512, 512, 3, 1, 1}));  // few tiles
  EXPECT_FALSE(conv_preferred({64, 7, 7, 512, 1024, 3, 1, 1}));
  EXPECT_FALSE(conv_preferred({64, 56, 56, 512, 512, 3, 1, 1}));  // gradients by parts
  EXPECT_FALSE(conv_preferred({8, 7, 7, 512, 2048, 1, 1, 0}));
  EXPECT_FALSE(conv_preferred({8, 28, 28, 128, 256, 3, 2, 1}));
}

}  // namespace
}  // namespace ductile::nn::kernels
