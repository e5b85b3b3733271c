#include "ductile/nn/kernels/isa.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/isa.h"
#include "ductile/nn/kernels/test_data.h"

namespace ductile::nn::kernels {

#if defined(__x86_64__)
extern const Isa kAvx2PairIsa;
extern const Bf16Isa kBf16PairIsa;
extern const Bf16Isa kBf16Isa8;
extern const Bf16Isa kBf16Isa16;
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

#if defined(__x86_64__)
// The emulation against doubles everywhere, and the processor's own products against it, whether or
// not it would use tiles (amx_test.cc).
class Bf16Table : public IsaTable {
 protected:
  template <class F>
  void expect_same_bf16(const F& f) {
    const std::vector<float> want = f(kBf16PairIsa);
    if (!may_use(IsaLevel::bf16)) return;
    for (const Bf16Isa* isa : {&kBf16Isa8, &kBf16Isa16}) {
      EXPECT_EQ(0, std::memcmp(f(*isa).data(), want.data(), want.size() * sizeof(float)))
          << isa->name;
    }
  }

  static double value_of(const std::vector<float>& pairs, int64_t at) {
    uint16_t words[2];
    std::memcpy(words, &pairs[at / 2], sizeof(words));
    const uint32_t bits = static_cast<uint32_t>(words[at % 2]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  // bf16 values as pairs: [n, 2].
  static std::vector<float> pairs(uint64_t seed, int64_t n) {
    const auto words = stored(normals(seed, 2 * n), Storage::bf16);
    std::vector<float> out(n);
    std::memcpy(out.data(), words.data(), words.size());
    return out;
  }
};

TEST_F(Bf16Table, MultipliesPairs) {
  const int64_t depth = 9;
  for (const int64_t rows : {1, 12, 29}) {
    const auto a = pairs(1, rows * depth), b = pairs(2, depth * kChannels);
    const auto c = normals(3, rows * kChannels);
    const auto product = [&](const Bf16Isa& isa) {
      auto out = c;
      isa.gemm({a.data(), depth, 1, 0, b.data(), kChannels, 0, out.data(), kChannels, rows,
                kChannels, depth, 1, true});
      return out;
    };
    expect_same_bf16(product);
    std::vector<double> want(c.begin(), c.end());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t d = 0; d < 2 * depth; ++d)
        for (int64_t j = 0; j < kChannels; ++j)
          want[r * kChannels + j] +=
              value_of(a, r * 2 * depth + d) * value_of(b, (d / 2 * kChannels + j) * 2 + d % 2);
    EXPECT_LT(relative_error(product(kBf16PairIsa), want), 1e-6);
  }
}

TEST_F(Bf16Table, RoundsAndPairsValues) {
  const auto first = normals(1, kChannels), second = normals(2, kChannels);
  const auto words = stored(first, Storage::bf16);
  for (const bool alone : {false, true}) {
    const auto both = [&](const Bf16Isa& isa) {
      std::vector<float> out(3 * kChannels);
      auto* const values = reinterpret_cast<uint16_t*>(out.data() + kChannels);
      isa.pair(first.data(), alone ? nullptr : second.data(), out.data(), kChannels);
      isa.round(first.data(), values, kChannels);
      isa.pair_values(values, values + 1, out.data() + 2 * kChannels, kChannels - 5);
      return out;
    };
    expect_same_bf16(both);
    const auto got = both(kBf16PairIsa);
    EXPECT_EQ(0, std::memcmp(got.data() + kChannels, words.data(), words.size()));
    const auto x = rounded(first, Storage::bf16), y = rounded(second, Storage::bf16);
    for (int64_t i = 0; i < kChannels; ++i) {
      EXPECT_EQ(value_of(got, 2 * i), x[i]);
      EXPECT_EQ(value_of(got, 2 * i + 1), alone ? 0.0F : y[i]);
      if (i >= kChannels - 5) continue;
      EXPECT_EQ(value_of(got, 4 * kChannels + 2 * i), x[i]);
      EXPECT_EQ(value_of(got, 4 * kChannels + 2 * i + 1), x[i + 1]);
    }
  }
}

// Against the fp32 kernels, rounded.
TEST_F(Bf16Table, TransformsTilesToPairs) {
  const int64_t row = 14 * kChannels, n = 3, panel = 16;
  const auto image = normals(1, 14 * row);
  const float* tiles[] = {image.data(), image.data() + 4 * row, image.data() + 8 * kChannels};
  const auto transform = [&](const Bf16Isa& isa, int kind) {
    std::vector<float> out(36 * n * kChannels);
    const int64_t stride = n * kChannels;
    if (kind == 0) isa.winograd_input(tiles, n, row, kChannels, out.data(), stride);
    if (kind == 1) isa.winograd_input_pairs(tiles, n, row, kChannels, panel, 2, out.data(), stride);
    if (kind == 2) isa.winograd_grad_pairs(tiles, n, row, kChannels, panel, 2, out.data(), stride);
    return out;
  };
  for (int kind = 0; kind < 3; ++kind) {
    expect_same_bf16([&](const Bf16Isa& isa) { return transform(isa, kind); });
    const auto got = transform(kBf16PairIsa, kind);
    std::vector<float> plain(36 * n * kChannels);
    const auto f32 = kind == 2 ? base_->winograd_grad : base_->winograd_input;
    f32(tiles, n, row, kChannels, kChannels, n, plain.data(), n * kChannels);
    plain = rounded(plain, Storage::bf16);
    for (int64_t f = 0; f < 36; ++f)
      for (int64_t t = 0; t < 4; ++t)
        for (int64_t c = 0; c < kChannels; ++c) {
          const float want = t < n ? plain[(f * n + t) * kChannels + c] : 0.0F;
          const int64_t at = kind == 0
                                 ? t * kChannels + c
                                 : (c / panel * 2 * panel + t / 2 * panel + c % panel) * 2 + t % 2;
          if (kind == 0 && t == n) continue;
          ASSERT_EQ(value_of(got, 2 * f * n * kChannels + at), want) << kind << " " << t;
        }
  }
}

TEST_F(Bf16Table, TransformsFiltersToPairs) {
  for (const int64_t in : {16, 64}) {
    const int64_t out = 80 - in;
    const auto weight = normals(1, in * out * 9);
    for (const bool turned : {false, true}) {
      const int64_t rows = turned ? out : in, columns = turned ? in : out;
      const auto transform = [&](const Bf16Isa& isa) {
        std::vector<float> u(18 * in * out), work(99 * 64);
        const auto f = turned ? isa.winograd_filter_rotated : isa.winograd_filter;
        f(weight.data(), in, out, 0, rows / 2, work.data(), u.data());
        return u;
      };
      expect_same_bf16(transform);
      const auto got = transform(kBf16PairIsa);
      std::vector<float> plain(36 * in * out), work(63 * 64);
      const auto f = turned ? base_->winograd_filter_rotated : base_->winograd_filter;
      f(weight.data(), in, out, 0, rows, work.data(), plain.data());
      plain = rounded(plain, Storage::bf16);
      const int64_t panel = panel_of(columns);
      for (int64_t k = 0; k < 36; ++k)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < columns; ++c) {
            const int64_t panels = c / panel * panel * rows + c % panel;
            ASSERT_EQ(value_of(got, k * rows * columns + c / panel * panel * rows +
                                        (r / 2 * panel + c % panel) * 2 + r % 2),
                      plain[k * rows * columns + panels + r * panel]);
          }
    }
  }
}
#endif

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
}

TEST_F(IsaTable, GathersMomentsWithTheSameBits) {
  const int64_t pixels = 205;
  const auto x = normals(5, pixels * kChannels);
  // `at_once` pixels in a call: blocks of 32 are joined one by one, however they are computed.
  const auto moments = [&](const Isa& isa, int64_t at_once) {
    std::vector<float> out(2 * kChannels);
    Moments m{out.data(), out.data() + kChannels, 0};
    for (int64_t i = 0; i < pixels; i += at_once)
      isa.moments(x.data() + i * kChannels, std::min(at_once, pixels - i), kChannels, &m);
    EXPECT_EQ(m.count, pixels);
    return out;
  };
  expect_same([&](const Isa& isa) { return moments(isa, pixels); });
  EXPECT_EQ(moments(*base_, pixels), moments(*base_, 32));
}

TEST_F(IsaTable, PoolsWithTheSameBits) {
  for (const Storage storage : {Storage::f32, Storage::bf16, Storage::f16}) {
    for (const MaxPool& s : {MaxPool{storage, 7, 9, kChannels, 3, 2, 1, 4, 5},
                             MaxPool{storage, 6, 8, kChannels, 2, 2, 0, 3, 4}}) {
      const int64_t in = s.height * s.width * kChannels,
                    out = s.out_height * s.out_width * kChannels;
      const auto x = stored(normals(1, in), storage);
      const auto dy = stored(normals(2, out), storage);
      expect_same([&](const Isa& isa) {
        std::vector<char> y(dy.size());
        std::vector<uint8_t> index(out);
        std::vector<float> dx(in, 7.0F);  // what is there does not count
        isa.max_pool(s, x.data(), y.data(), index.data());
        isa.max_pool_grad(s, dy.data(), index.data(), dx.data());
        for (const char v : y) dx.push_back(static_cast<float>(v));
        for (const uint8_t v : index) dx.push_back(static_cast<float>(v));
        return dx;
      });
    }
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
