#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/rng.h"
#include "ductile/optim/kernels_impl.h"

namespace ductile::optim::kernels {
namespace {

// The value of a 16-bit float with the given number of fraction bits, by its definition.
double slow_value(uint16_t bits, int fraction_bits, int bias) {
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int max_exponent = (1 << (15 - fraction_bits)) - 1;
  const int exponent = (bits >> fraction_bits) & max_exponent;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == max_exponent) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// Rounds by comparing with the two neighbours: the nearest, of two equally near the even one.
// 16-bit floats of one sign are ordered as their bits; infinity stands where the next power would.
uint16_t slow_round(float value, int fraction_bits, int bias) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const uint16_t infinity =
      static_cast<uint16_t>(((1 << (15 - fraction_bits)) - 1) << fraction_bits);
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return sign | infinity;
  const auto finite_value = [&](uint16_t bits) {
    return bits == infinity ? std::ldexp(1.0, bias + 1) : slow_value(bits, fraction_bits, bias);
  };
  uint16_t low = 0;
  uint16_t high = infinity;
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (finite_value(middle) <= magnitude ? low : high) = middle;
  }
  if (magnitude >= finite_value(high)) return sign | high;
  const double below = magnitude - finite_value(low);
  const double above = finite_value(high) - magnitude;
  const bool up = below > above || (below == above && low % 2 == 1);
  return sign | (up ? high : low);
}

struct Format {
  const char* name;
  int fraction_bits;
  int bias;
  void (*Table::*narrow)(uint16_t*, const float*, int64_t);
  void (*Table::*widen)(float*, const uint16_t*, int64_t);
};

constexpr Format kFormats[] = {{"bf16", 7, 127, &Table::to_bf16, &Table::from_bf16},
                               {"f16", 10, 15, &Table::to_f16, &Table::from_f16}};

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
    if (supported(isa)) all.push_back(isa);
  }
  return all;
}

// By every instruction set.
void expect_rounded(const Format& format, const std::vector<float>& values) {
  std::vector<uint16_t> expected(values.size()), rounded(values.size());  // 0 of what is no number
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) continue;
    expected[i] = slow_round(values[i], format.fraction_bits, format.bias);
  }
  for (const Isa isa : isas()) {
    (table(isa).*format.narrow)(rounded.data(), values.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(slow_value(rounded[i], format.fraction_bits, format.bias)));
        ASSERT_NE(rounded[i] & (1 << (format.fraction_bits - 1)), 0) << "not quiet";
        ASSERT_EQ(rounded[i] >> 15, std::bit_cast<uint32_t>(values[i]) >> 31);
      } else {
        ASSERT_EQ(rounded[i], expected[i]) << format.name << " of " << std::hexfloat << values[i];
      }
    }
  }
}

TEST(Precision, Every16BitValueWidensExactlyAndComesBack) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const Format& format : kFormats) {
    for (Isa isa : isas()) {
      std::vector<float> wide(all.size());
      std::vector<uint16_t> back(all.size());
      (table(isa).*format.widen)(wide.data(), all.data(), 65536);
      (table(isa).*format.narrow)(back.data(), wide.data(), 65536);
      for (size_t i = 0; i < all.size(); ++i) {
        const double expected = slow_value(all[i], format.fraction_bits, format.bias);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(wide[i])) << format.name << " " << i;
        } else {
          ASSERT_EQ(static_cast<double>(wide[i]), expected) << format.name << " " << i;
          ASSERT_EQ(std::signbit(wide[i]), std::signbit(expected)) << format.name << " " << i;
          ASSERT_EQ(back[i], all[i]) << format.name;
        }
      }
    }
  }
}

// Every representable value's neighbourhood: itself, the midpoint to the next, and one float to
// each side of both.
TEST(Precision, RoundsToNearestEvenAroundEvery16BitValue) {
  for (const Format& format : kFormats) {
    std::vector<float> values;
    for (int i = 0; i < 65536; ++i) {
      const double value = slow_value(static_cast<uint16_t>(i), format.fraction_bits, format.bias);
      const double next =
          slow_value(static_cast<uint16_t>(i + 1), format.fraction_bits, format.bias);
      for (double center : {value, (value + next) / 2}) {
        const float f = static_cast<float>(center);
        values.insert(values.end(), {f, std::nextafter(f, INFINITY), std::nextafter(f, -INFINITY)});
      }
    }
    expect_rounded(format, values);
  }
}

TEST(Precision, RoundsRandomBitPatternsAsTheSlowTwin) {
  Rng rng(7);
  std::vector<float> values{NAN,
                            -NAN,
                            INFINITY,
                            -INFINITY,
                            0.0F,
                            -0.0F,
                            65504,
                            65519.99F,
                            65520,
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::signaling_NaN()};
  for (int i = 0; i < 300'000; ++i) values.push_back(std::bit_cast<float>(rng.next()));
  for (int i = 0; i < 300'000; ++i) {
    values.push_back(std::ldexp(rng.normal(), static_cast<int>(rng.below(60)) - 40));
  }
  for (const Format& format : kFormats) expect_rounded(format, values);
}

std::vector<float> random_floats(Rng& rng, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = rng.normal();
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One run of every arithmetic kernel on the same inputs; the outputs one after the other.
std::vector<float> run_all(const Table& t, uint64_t seed, int64_t n, int64_t shift) {
  Rng rng(seed);
  std::vector<float> w = random_floats(rng, n + shift), g = random_floats(rng, n + shift);
  std::vector<float> m = random_floats(rng, n + shift), v = random_floats(rng, n + shift);
  for (float& x : v) x = x * x;
  const MomentumScalars ms{0.3F, 0.01F, 0.9F, 0.7F, 0.1F};
  const AdamScalars as{0.3F, 0.01F, 0.9F, 0.1F, 0.999F, 0.001F, 0.99F, 0.02F, 1.5F, 1e-8F};
  const LambScalars ls{0.3F, 0.9F, 0.1F, 0.999F, 0.001F, 1.2F, 1.5F, 1e-6F, 0.01F};
  std::vector<float> out;
  const auto keep = [&](const std::vector<float>& values) {
    out.insert(out.end(), values.begin(), values.end());
  };
  float* const wp = w.data() + shift;
  float* const gp = g.data() + shift;
  float* const mp = m.data() + shift;
  float* const vp = v.data() + shift;
  std::vector<float> r(w.size());
  t.sgd(wp, gp, n, ms);
  t.momentum(wp, gp, mp, n, ms);
  t.nesterov(wp, gp, mp, n, ms);
  keep(w);
  t.adam(wp, gp, mp, vp, n, as);
  t.lamb_direction(r.data() + shift, wp, gp, mp, vp, n, ls);
  keep(r);
  t.lamb_apply(wp, gp, mp, vp, n, 0.3F, ls);
  t.ema(mp, wp, n, 0.1F);
  t.add(gp, wp, n);
  for (const auto* values : {&w, &g, &m, &v}) keep(*values);
  const NadamScalars ns{0.3F, 0.9F, 0.1F, 0.999F, 0.001F, 0.99F, 0.02F, 1.1F, 0.2F, 1.5F, 1e-8F};
  const AdemamixScalars xs{0.3F,  0.9F,  0.1F, 0.99F, 0.01F, 0.999F, 0.001F,
                           0.99F, 0.02F, 1.1F, 5,     1.5F,  1e-8F};
  const ScheduleFreeScalars fs{0.3F, 0.9F, 0.1F, 0.99F, 0.01F, 0.02F, 1e-4F, 0.3F, 1e-8F};
  const NeumannScalars us{0.3F, 0.01F, 0.02F, 0.9F, 0.1F, 0.9F, 0.1F, 0.99F};
  float* const rp = r.data() + shift;
  t.nadam(wp, gp, mp, vp, n, ns);
  t.ademamix(wp, gp, mp, rp, vp, n, xs);
  t.schedule_free(wp, gp, mp, rp, vp, n, fs);
  t.neumann(wp, gp, mp, rp, n, us);
  t.bfgs(vp, wp, gp, n, {0.3F, 0.7F, 1e-8F});
  t.divide(gp, gp, vp, n, 1e-8F);
  t.blend(mp, 0.3F, mp, 0.7F, wp, n);
  t.multiply(rp, rp, mp, n);
  t.add_scaled(wp, rp, n, -0.4F);
  for (const auto* values : {&w, &g, &m, &v, &r}) keep(*values);
  std::vector<float> tile(static_cast<size_t>(kTileRows * (kTileColumns + 3)), 0.5F);
  std::vector<float> left = random_floats(rng, 40 * kTileRows);
  std::vector<float> right = random_floats(rng, 40 * kTileColumns);
  t.tile(tile.data(), kTileColumns + 3, left.data(), right.data(), 40);
  keep(tile);
  for (const double sum : {t.sum_squares(wp, n), t.dot(wp, rp, n)}) {
    float halves[2];
    std::memcpy(halves, &sum, sizeof halves);
    out.insert(out.end(), halves, halves + 2);
  }
  return out;
}

RC_GTEST_PROP(Kernels, EveryInstructionSetGivesTheSameBits,
              (uint64_t seed, uint16_t length, uint8_t shift)) {
  const int64_t n = length % 3000;
  const std::vector<float> expected = run_all(table(Isa::baseline), seed, n, shift % 17);
  for (Isa isa : isas()) RC_ASSERT(same_bits(run_all(table(isa), seed, n, shift % 17), expected));
}

TEST(Kernels, SumOfSquaresIsThatOfAPlainLoop) {
  Rng rng(3);
  for (int64_t n : {0, 1, 15, 16, 17, 1000, 16384}) {
    const std::vector<float> x = random_floats(rng, n);
    long double expected = 0;
    for (float v : x) expected += static_cast<long double>(v) * v;
    for (Isa isa : isas()) {
      EXPECT_NEAR(table(isa).sum_squares(x.data(), n), static_cast<double>(expected),
                  1e-13 * static_cast<double>(n));
    }
  }
}

}  // namespace
}  // namespace ductile::optim::kernels
