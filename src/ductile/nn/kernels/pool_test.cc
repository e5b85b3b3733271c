#include "ductile/nn/kernels/pool.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "ductile/nn/kernels/test_data.h"

namespace ductile::nn::kernels {
namespace {

MaxPool pool_shape(Storage storage, int64_t height, int64_t width, int64_t channels, int64_t kernel,
                   int64_t stride, int64_t padding) {
  return {storage,
          height,
          width,
          channels,
          kernel,
          stride,
          padding,
          (height + 2 * padding - kernel) / stride + 1,
          (width + 2 * padding - kernel) / stride + 1};
}

class Pool : public ::testing::Test {
 protected:
  void SetUp() override {
    if (isa_for(8) == nullptr) GTEST_SKIP() << "this processor has no AVX2: ATen does the work";
  }
};

// Maximum and gradient of every window, one value at a time.
void expect_equals_twin(const MaxPool& s, int64_t batch) {
  const int64_t in = s.height * s.width * s.channels, out = s.out_height * s.out_width * s.channels;
  const auto x = rounded(normals(1, batch * in), s.storage);
  const auto dy = rounded(normals(2, batch * out), s.storage);
  const auto stored_x = stored(x, s.storage), stored_dy = stored(dy, s.storage);
  std::vector<char> y(batch * out * bytes_of(s.storage)), dx(batch * in * bytes_of(s.storage));
  std::vector<uint8_t> index(batch * out);
  max_pool(s, batch, stored_x.data(), y.data(), index.data());
  max_pool_grad(s, batch, stored_dy.data(), index.data(), dx.data());

  std::vector<float> want_y(batch * out);
  std::vector<double> want_dx(batch * in);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < s.out_height; ++i)
      for (int64_t j = 0; j < s.out_width; ++j)
        for (int64_t c = 0; c < s.channels; ++c) {
          int64_t best = -1;
          for (int64_t p = 0; p < s.kernel; ++p)
            for (int64_t q = 0; q < s.kernel; ++q) {
              const int64_t row = i * s.stride + p - s.padding, col = j * s.stride + q - s.padding;
              if (row < 0 || col < 0 || row >= s.height || col >= s.width) continue;
              const int64_t at = b * in + (row * s.width + col) * s.channels + c;
              if (best < 0 || x[at] > x[best]) best = at;
            }
          const int64_t at = b * out + (i * s.out_width + j) * s.channels + c;
          want_y[at] = x[best];
          want_dx[best] += dy[at];
        }
  EXPECT_EQ(read(y, s.storage), want_y);
  EXPECT_LT(relative_error(read(dx, s.storage), want_dx),
            s.storage == Storage::f32 ? 1e-6 : 1.0 / 256);
}

TEST_F(Pool, TakesTheMaximumAndSendsTheGradientThere) {
  for (const Storage storage : {Storage::f32, Storage::bf16, Storage::f16}) {
    expect_equals_twin(pool_shape(storage, 28, 28, 16, 2, 2, 0), 2);
    expect_equals_twin(pool_shape(storage, 7, 9, 24, 2, 2, 0), 3);
    expect_equals_twin(pool_shape(storage, 9, 8, 8, 3, 2, 1), 2);
    expect_equals_twin(pool_shape(storage, 5, 5, 40, 3, 1, 1), 1);
    expect_equals_twin(pool_shape(storage, 6, 9, 8, 3, 3, 0), 2);
    expect_equals_twin(pool_shape(storage, 9, 9, 8, 2, 3, 0), 1);  // pixels in no window
    expect_equals_twin(pool_shape(storage, 1, 1, 8, 1, 1, 0), 1);
  }
}

TEST_F(Pool, LetsNotANumberThrough) {
  const MaxPool s = pool_shape(Storage::f32, 2, 2, 8, 2, 2, 0);
  for (int position = 0; position < 4; ++position) {
    auto x = normals(1, 4 * 8);
    x[position * 8 + 3] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> y(8);
    std::vector<uint8_t> index(8);
    max_pool(s, 1, x.data(), y.data(), index.data());
    EXPECT_TRUE(std::isnan(y[3]));
    EXPECT_EQ(index[3], position);
    EXPECT_FALSE(std::isnan(y[4]));
  }
}

TEST_F(Pool, AveragesWholeImages) {
  const int64_t batch = 3, pixels = 49, channels = 24;
  for (const Storage storage : {Storage::f32, Storage::bf16}) {
    const auto x = rounded(normals(1, batch * pixels * channels), storage);
    const auto dy = rounded(normals(2, batch * channels), storage);
    std::vector<char> y(batch * channels * bytes_of(storage)), dx(x.size() * bytes_of(storage));
    average_pool(storage, batch, pixels, channels, stored(x, storage).data(), y.data());
    average_pool_grad(storage, batch, pixels, channels, stored(dy, storage).data(), dx.data());
    std::vector<double> want_y(batch * channels), want_dx(x.size());
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t p = 0; p < pixels; ++p)
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t at = (b * pixels + p) * channels + c;
          want_y[b * channels + c] += x[at] / 49.0;
          want_dx[at] = dy[b * channels + c] / 49.0;
        }
    const double tolerance = storage == Storage::f32 ? 1e-6 : 1.0 / 256;
    EXPECT_LT(relative_error(read(y, storage), want_y), tolerance);
    EXPECT_LT(relative_error(read(dx, storage), want_dx), tolerance);
  }
}

TEST_F(Pool, RefusesWhatItCannotDo) {
  EXPECT_FALSE(max_pool_supported(pool_shape(Storage::f32, 8, 8, 12, 2, 2, 0)));
  EXPECT_FALSE(max_pool_supported(pool_shape(Storage::f32, 40, 40, 8, 16, 2, 0)));
  EXPECT_FALSE(max_pool_supported(pool_shape(Storage::f32, 8, 8, 8, 2, 2, 2)));
}

}  // namespace
}  // namespace ductile::nn::kernels
