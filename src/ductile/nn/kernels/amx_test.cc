#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ductile/base/isa.h"
#include "ductile/base/rng.h"
#include "ductile/nn/kernels/amx_twin.h"
#include "ductile/nn/kernels/test_data.h"

namespace ductile::nn::kernels {

void gemm_on_tiles(const Gemm& g);

namespace {

using GemmKernel = void (*)(const Gemm&);

enum class Values { normal, tiny, special };

// A bf16 value, as its word.
uint32_t draw_word(Values values, Rng& rng) {
  constexpr uint32_t kSpecial[] = {0x7f80, 0xff80, 0x7fc0, 0x7f7f, 0xff7f, 0x0001, 0x8001, 0x8000};
  if (values == Values::special && rng.below(200) == 0) return kSpecial[rng.below(8)];
  float x = rng.normal();
  // Products and sums around the smallest normal number, 2^-126.
  if (values == Values::tiny) x = std::ldexp(x, -50 - static_cast<int>(rng.below(95)));
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits >> 16;
}

std::vector<float> draw_pairs(Values values, Rng& rng, int64_t n) {
  std::vector<float> out(n);
  for (float& x : out) {
    const uint32_t first = draw_word(values, rng), pair = first | draw_word(values, rng) << 16;
    std::memcpy(&x, &pair, sizeof(pair));
  }
  return out;
}

// A product of a random shape whose operands lie in a random way.
struct TileProduct {
  TileProduct(Values values, Rng& rng) {
    const auto up_to = [&](int64_t n) { return 1 + static_cast<int64_t>(rng.below(n)); };
    const auto coin = [&] { return rng.below(2) == 0; };
    g.rows = up_to(rng.below(5) == 0 ? 100 : 40);
    g.cols = 8 * up_to(12);
    g.runs = up_to(4);
    g.depth = up_to(rng.below(5) == 0 ? 200 : 40);
    g.accumulate = coin();
    lay_a(rng, coin());
    if (g.cols % 32 == 0 && coin()) g.panel = 32;
    const int64_t wide = g.panel > 0 ? g.panel : g.cols + 8 * static_cast<int64_t>(rng.below(3));
    g.b_depth = wide;
    g.b_run = wide * (g.depth + (coin() ? 0 : 1));
    g.c_row = wide + (g.panel > 0 ? 0 : 4);
    if (g.panel > 0) {
      g.b_panel = g.b_run * g.runs + 16;
      g.c_panel = g.c_row * g.rows;
    }
    const int64_t panels = g.panel > 0 ? g.cols / g.panel : 1;
    a = draw_pairs(values, rng,
                   (g.rows - 1) * g.a_row + (g.runs - 1) * g.a_run + (g.depth - 1) * g.a_depth + 1);
    b = draw_pairs(values, rng, panels * (g.b_run * g.runs + 16));
    c.resize(panels * g.rows * g.c_row);
    for (float& x : c)
      x = std::ldexp(rng.normal(),
                     values == Values::tiny ? -120 - static_cast<int>(rng.below(25)) : 0);
  }

  // Rows of a along the depth, one of its columns after the other, or with gaps.
  void lay_a(Rng& rng, bool tight) {
    const auto kind = rng.below(3);
    g.a_depth = kind == 0 ? 1 : kind == 1 ? g.rows + 3 : 2;
    g.a_run = g.depth * g.a_depth + (tight ? 0 : 5);
    g.a_row = kind == 1 ? 1 : 2 + g.a_run * (tight ? 1 : g.runs);
  }

  std::vector<float> result(GemmKernel kernel) const {
    std::vector<float> out = c;
    Gemm product = g;
    product.a = a.data();
    product.b = b.data();
    product.c = out.data();
    kernel(product);
    return out;
  }

  std::string text() const {
    return fmt::format("[{}, {} x {}] x {}, a {} {} {}, panels of {}, accumulate {}", g.rows,
                       g.runs, g.depth, g.cols, g.a_row, g.a_run, g.a_depth, g.panel, g.accumulate);
  }

  Gemm g{};
  std::vector<float> a, b, c;
};

// The first element whose bits differ, or -1; which NaN it is does not matter.
int64_t first_other(const std::vector<float>& got, const std::vector<float>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::memcmp(&got[i], &want[i], sizeof(float)) != 0) return static_cast<int64_t>(i);
  }
  return -1;
}

void expect_the_twins_bits(GemmKernel kernel) {
  for (const Values values : {Values::normal, Values::tiny, Values::special}) {
    Rng rng(7, static_cast<uint64_t>(values));
    for (int i = 0; i < 100; ++i) {
      const TileProduct product(values, rng);
      ASSERT_EQ(first_other(product.result(kernel), product.result(tiles_twin)), -1)
          << product.text();
    }
  }
}

TEST(AmxProducts, TheTwinIsWithinRoundingOfDoubles) {
  if (!may_use(IsaLevel::avx2)) GTEST_SKIP() << "this processor has no AVX2";
  const auto half = [](float pair, bool second) {
    uint32_t bits;
    std::memcpy(&bits, &pair, sizeof(bits));
    bits = second ? bits & 0xffff0000 : bits << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return static_cast<double>(value);
  };
  Rng rng(3);
  const int64_t rows = 5, cols = 24, depth = 37;
  const auto a = draw_pairs(Values::normal, rng, rows * depth);
  const auto b = draw_pairs(Values::normal, rng, depth * cols);
  const auto before = normals(3, rows * cols);
  auto got = before;
  tiles_twin(
      {a.data(), depth, 1, 0, b.data(), cols, 0, got.data(), cols, rows, cols, depth, 1, true});
  std::vector<double> want(before.begin(), before.end());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < cols; ++j)
        for (const bool second : {false, true})
          want[r * cols + j] += half(a[r * depth + k], second) * half(b[k * cols + j], second);
  EXPECT_LT(relative_error(got, want), 1e-6);
}

// Everything but the instructions on tiles.
TEST(AmxProducts, TilesInMemoryGiveTheTwinsBits) {
  if (!may_use(IsaLevel::avx512)) GTEST_SKIP() << "this processor has no AVX-512";
  expect_the_twins_bits(gemm_on_played_tiles);
}

TEST(AmxProducts, TheProcessorsTilesGiveTheTwinsBits) {
  if (!may_use(IsaLevel::amx)) GTEST_SKIP() << "no tiles here: " << bf16_products();
  expect_the_twins_bits(gemm_on_tiles);
}

// The palette of the calling thread's tiles; 0: they are released.
int palette() {
  alignas(64) unsigned char config[64];
  asm volatile("sttilecfg %0" : "=m"(config));
  return config[0];
}

TEST(AmxProducts, TilesAreReleasedAtTheEndOfABlockOfWork) {
  if (!may_use(IsaLevel::amx)) GTEST_SKIP() << "no tiles here: " << bf16_products();
  expect_the_twins_bits(gemm_on_tiles);
  EXPECT_EQ(palette(), 0);
  {
    const TilesKept kept(bf16_isa_for(16));
    expect_the_twins_bits(gemm_on_tiles);
    EXPECT_EQ(palette(), 1);
  }
  EXPECT_EQ(palette(), 0);
  expect_the_twins_bits(gemm_on_tiles);
  EXPECT_EQ(palette(), 0);
}

TEST(AmxProducts, AnEmptySumIsZero) {
  if (!may_use(IsaLevel::avx512)) GTEST_SKIP() << "this processor has no AVX-512";
  for (const bool accumulate : {false, true}) {
    std::vector<float> c(3 * 16, 7);
    gemm_on_played_tiles({nullptr, 4, 1, 0, nullptr, 16, 0, c.data(), 16, 3, 16, 0, 0, accumulate});
    EXPECT_EQ(c, std::vector<float>(3 * 16, accumulate ? 7 : 0));
  }
}

TEST(AmxProducts, AreTakenWhereTheyMayBeUsed) {
  for (const int64_t channels : {8, 16}) {
    const Bf16Isa* const table = bf16_isa_for(channels);
    EXPECT_EQ(table != nullptr, may_use(IsaLevel::bf16));
    if (table == nullptr) continue;
    EXPECT_EQ(table->lanes, channels);
    EXPECT_EQ(table->gemm == gemm_on_tiles, may_use(IsaLevel::amx));
  }
}

}  // namespace
}  // namespace ductile::nn::kernels
