#include "ductile/nn/kernels/isa.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/nn/kernels/test_data.h"

namespace ductile::nn::kernels {

#if defined(__x86_64__)
extern const Isa kAvx2PairIsa;
#endif

namespace {

// Every table of this processor must give the bits of the 8-lane one.
class IsaTable : public ::testing::Test {
 protected:
  void SetUp() override {
    if (isa_for(8) == nullptr) GTEST_SKIP() << "this processor has no AVX2: ATen does the work";
    base_ = isa_for(8);
    for (const Isa* const* isa = all_isas(); *isa != nullptr; ++isa)
      if (*isa != base_) wide_.push_back(*isa);
#if defined(__x86_64__)
    wide_.push_back(&kAvx2PairIsa);
#endif
  }

  // Runs f(isa) -> vector for every table and compares.
  template <class F>
  void expect_same(const F& f) {
    const auto want = f(*base_);
    for (const Isa* isa : wide_) {
      const auto got = f(*isa);
      ASSERT_EQ(got.size(), want.size());
      EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(want[0])))
          << isa->name;
    }
  }

  const Isa* base_ = nullptr;
  std::vector<const Isa*> wide_;
};

constexpr int64_t kChannels = 48;

TEST_F(IsaTable, MultipliesMatricesWithTheSameBits) {
  for (const int64_t rows : {1, 5, 6, 11, 12, 13, 29}) {
    const int64_t depth = 9, runs = 3;
    const auto a = normals(1, rows * depth * runs), b = normals(2, depth * runs * kChannels);
    const auto c = normals(3, rows * kChannels);
    for (const bool accumulate : {false, true}) {
      const auto product = [&](const Isa& isa) {
        auto out = c;
        isa.gemm({a.data(), depth * runs, 1, depth, b.data(), kChannels, depth * kChannels,
                  out.data(), kChannels, rows, kChannels, depth, runs, accumulate});
        return out;
      };
      expect_same(product);
      const auto got = product(*base_);
      std::vector<double> want(c.begin(), c.end());
      if (!accumulate) std::fill(want.begin(), want.end(), 0.0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < depth * runs; ++d)
          for (int64_t j = 0; j < kChannels; ++j)
            want[r * kChannels + j] +=
                static_cast<double>(a[r * depth * runs + d]) * b[d * kChannels + j];
      EXPECT_LT(relative_error(got, want), 1e-6);
    }
  }
}

TEST_F(IsaTable, TransformsTilesWithTheSameBits) {
  const int64_t row = 10 * kChannels, n = 2, stride = n * kChannels + 16;
  const auto image = normals(1, 10 * row);
  const float* tiles[] = {image.data(), image.data() + 4 * row + 4 * kChannels};
  expect_same([&](const Isa& isa) {
    std::vector<float> out(36 * stride);
    isa.winograd_input(tiles, n, row, kChannels, kChannels, n, out.data(), stride);
    return out;
  });
  expect_same([&](const Isa& isa) {
    std::vector<float> out(36 * stride);
    isa.winograd_grad(tiles, n, row, kChannels, 16, n, out.data(), stride);
    return out;
  });
  const auto frequencies = normals(2, 36 * stride);
  for (const Storage storage : {Storage::f32, Storage::bf16, Storage::f16})
    expect_same([&](const Isa& isa) {
      std::vector<float> y(10 * row), moments(2 * kChannels);
      const OutTile to[] = {{y.data(), 4, 4}, {y.data() + 4 * row, 3, 2}};
      Moments m{moments.data(), moments.data() + kChannels, 0};
      isa.winograd_output(frequencies.data(), stride, n, kChannels, to, row, storage, &m);
      y.insert(y.end(), moments.begin(), moments.end());
      return y;
    });
}

TEST_F(IsaTable, NormalisesWithTheSameBits) {
  const int64_t pixels = 77, n = pixels * kChannels;
  const auto scale = normals(1, kChannels), shift = normals(2, kChannels);
  const auto mean = normals(3, kChannels), slope = normals(4, kChannels);
  for (const Storage storage : {Storage::f32, Storage::bf16, Storage::f16}) {
    const auto y = stored(normals(5, n), storage), residual = stored(normals(6, n), storage);
    for (const Act act : {Act::none, Act::relu, Act::gelu, Act::silu}) {
      const bool relu = act == Act::relu;
      expect_same([&](const Isa& isa) {
        std::vector<char> out(n * bytes_of(storage));
        isa.norm_apply({y.data(), residual.data(), out.data(), storage, pixels, kChannels,
                        scale.data(), shift.data(), act});
        return out;
      });
      expect_same([&](const Isa& isa) {
        std::vector<float> sums(2 * kChannels);
        std::vector<char> g(n * bytes_of(storage));
        isa.norm_reduce({residual.data(), y.data(), nullptr, g.data(), storage, pixels, kChannels,
                         scale.data(), shift.data(), act, mean.data(), sums.data(),
                         sums.data() + kChannels});
        sums.insert(sums.end(), g.begin(), g.end());
        return sums;
      });
      expect_same([&](const Isa& isa) {
        std::vector<float> dy((pixels - 3) * kChannels);
        const GradSource source{residual.data(), storage,     y.data(), scale.data(), slope.data(),
                                shift.data(),    mean.data(), relu,     scale.data(), shift.data()};
        isa.load_grad(source, 3, pixels - 3, kChannels, dy.data());
        return dy;
      });
    }
  }
  expect_same([&](const Isa& isa) {
    const auto x = normals(5, n);
    std::vector<float> out(2 * kChannels);
    Moments m{out.data(), out.data() + kChannels, 0};
    isa.moments(x.data(), pixels, kChannels, &m);
    return out;
  });
}

TEST_F(IsaTable, PoolsWithTheSameBits) {
  for (const Storage storage : {Storage::f32, Storage::bf16, Storage::f16}) {
    const MaxPool s{storage, 7, 9, kChannels, 3, 2, 1, 4, 5};
    const auto x = stored(normals(1, 7 * 9 * kChannels), storage);
    const auto dy = stored(normals(2, 4 * 5 * kChannels), storage);
    expect_same([&](const Isa& isa) {
      std::vector<char> y(dy.size());
      std::vector<uint8_t> index(4 * 5 * kChannels);
      std::vector<float> dx(7 * 9 * kChannels);
      isa.max_pool(s, x.data(), y.data(), index.data());
      isa.max_pool_grad(s, dy.data(), index.data(), dx.data());
      for (const char v : y) dx.push_back(static_cast<float>(v));
      for (const uint8_t v : index) dx.push_back(static_cast<float>(v));
      return dx;
    });
  }
}

TEST_F(IsaTable, ConvertsStorageWithTheSameBits) {
  auto x = normals(1, 61);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  x[4] = std::numeric_limits<float>::infinity();
  x[5] = -0.0F;
  x[60] = 3e38F;
  for (const Storage storage : {Storage::f32, Storage::bf16, Storage::f16})
    expect_same([&](const Isa& isa) {
      std::vector<char> out(x.size() * bytes_of(storage));
      std::vector<float> back(x.size() + 1);
      isa.from_float(x.data(), out.data(), storage, x.size());
      isa.to_float(out.data(), storage, back.data(), x.size());
      return back;
    });
}

TEST_F(IsaTable, RoundsBf16ToNearestEven) {
  const std::vector<float> x{1.0F, 1.00390625F, 1.01171875F, 1.0039065F, -1.00390625F};
  const std::vector<float> want{1.0F, 1.0F, 1.015625F, 1.0078125F, -1.0F};
  EXPECT_EQ(rounded(x, Storage::bf16), want);
  EXPECT_TRUE(std::isnan(rounded({std::numeric_limits<float>::quiet_NaN()}, Storage::bf16)[0]));
}

}  // namespace
}  // namespace ductile::nn::kernels
