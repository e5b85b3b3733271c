#include <array>
#include <bit>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "ductile/base/error.h"
#include "ductile/base/isa.h"
#include "ductile/optim/kernels_body_impl.h"
#include "ductile/optim/kernels_impl.h"

// This file is compiled with -O3 and without contraction, trapping and errno (CMakeLists.txt), so
// plain loops vectorise and every instruction set rounds alike.

namespace ductile::optim::kernels {
namespace body {
namespace {

// A choice without a branch: GCC does not vectorise a ?: that guards floating-point arithmetic.
DUCTILE_INLINE uint32_t choose(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

DUCTILE_INLINE void to_bf16(uint16_t* out, const float* in, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(in[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x7fc0u;
    out[i] = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
}

DUCTILE_INLINE void from_bf16(float* out, const uint16_t* in, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{in[i]} << 16);
}

// Three ranges, all computed, one chosen: from 2^-14 the exponent is moved and the 13 lost bits
// round into the rest; below it, adding 1/2 lines the bits up so that the addition itself rounds;
// from 65,520 it is infinity.
DUCTILE_INLINE void to_f16(uint16_t* out, const float* in, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(in[i]);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t finite = choose(magnitude < 0x38800000u, subnormal, normal);
    const uint32_t number = choose(magnitude >= 0x477ff000u, 0x7c00u, finite);
    const uint32_t half = choose(magnitude > 0x7f800000u, 0x7e00u, number);
    out[i] = static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
  }
}

DUCTILE_INLINE void from_f16(float* out, const uint16_t* in, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = in[i] & 0x7fffu;
    const uint32_t normal = (magnitude << 13) + 0x38000000u;
    // 2^-24 times the integer value of the fraction, without denormal arithmetic.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude | 0x4b000000u) - 0x1p23f);
    const uint32_t small = choose(magnitude == 0, 0u, subnormal - (24u << 23));
    const uint32_t finite = choose(magnitude < 0x0400u, small, normal);
    const uint32_t number = choose(magnitude >= 0x7c00u, (magnitude << 13) + 0x70000000u, finite);
    const uint32_t bits = choose(magnitude > 0x7c00u, number | 0x00400000u, number);
    out[i] = std::bit_cast<float>(bits | (uint32_t{in[i]} & 0x8000u) << 16);
  }
}

}  // namespace
}  // namespace body

namespace {

#ifdef __x86_64__
// body::sum_squares by hand: GCC 12 widens floats in two halves, which costs half the speed.
[[gnu::target("avx2,fma")]] double sum_squares_avx2(const float* x, int64_t n) {
  __m256d sums[4] = {};
  const auto add_sixteen = [&](const float* p) __attribute__((target("avx2,fma"))) {
    for (int k = 0; k < 4; ++k) {
      const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(p + 4 * k));
      sums[k] = _mm256_fmadd_pd(wide, wide, sums[k]);
    }
  };
  const int64_t whole = n / 16 * 16;
  for (int64_t i = 0; i < whole; i += 16) add_sixteen(x + i);
  if (whole < n) {
    float rest[16] = {};
    std::memcpy(rest, x + whole, static_cast<size_t>(n - whole) * sizeof(float));
    add_sixteen(rest);
  }
  const __m256d four =
      _mm256_add_pd(_mm256_add_pd(sums[0], sums[2]), _mm256_add_pd(sums[1], sums[3]));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}
#endif

// The same body compiled for each instruction set.
template <auto body>
struct On;

template <class R, class... A, R (*body)(A...)>
struct On<body> {
  static R baseline(A... a) { return body(a...); }
#ifdef __x86_64__
  [[gnu::target("avx2")]] static R avx2(A... a) { return body(a...); }
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] static R avx512(
      A... a) {
    return body(a...);
  }
#endif
};

template <Isa isa, auto body>
constexpr auto pick() {
#ifdef __x86_64__
  if constexpr (isa == Isa::avx2) return &On<body>::avx2;
  if constexpr (isa == Isa::avx512) return &On<body>::avx512;
#endif
  if constexpr (isa == Isa::baseline) return &On<body>::baseline;
}

template <Isa isa>
constexpr auto pick_sum_squares() {
#ifdef __x86_64__
  if constexpr (isa != Isa::baseline) return &sum_squares_avx2;
#endif
  if constexpr (isa == Isa::baseline) return pick<isa, body::sum_squares>();
}

template <Isa isa>
constexpr Table make_table() {
  return {.sgd = pick<isa, body::sgd>(),
          .momentum = pick<isa, body::momentum>(),
          .nesterov = pick<isa, body::nesterov>(),
          .adam = pick<isa, body::adam>(),
          .lamb_direction = pick<isa, body::lamb_direction>(),
          .lamb_apply = pick<isa, body::lamb_apply>(),
          .nadam = pick<isa, body::nadam>(),
          .ademamix = pick<isa, body::ademamix>(),
          .schedule_free = pick<isa, body::schedule_free>(),
          .neumann = pick<isa, body::neumann>(),
          .bfgs = pick<isa, body::bfgs>(),
          .divide = pick<isa, body::divide>(),
          .blend = pick<isa, body::blend>(),
          .multiply = pick<isa, body::multiply>(),
          .add_scaled = pick<isa, body::add_scaled>(),
          .tile = pick<isa, body::tile>(),
          .ema = pick<isa, body::ema>(),
          .add = pick<isa, body::add>(),
          .sum_squares = pick_sum_squares<isa>(),
          .dot = pick<isa, body::dot>(),
          .to_bf16 = pick<isa, body::to_bf16>(),
          .from_bf16 = pick<isa, body::from_bf16>(),
          .to_f16 = pick<isa, body::to_f16>(),
          .from_f16 = pick<isa, body::from_f16>()};
}

constexpr Table kBaseline = make_table<Isa::baseline>();
#ifdef __x86_64__
constexpr Table kAvx2 = make_table<Isa::avx2>();
constexpr Table kAvx512 = make_table<Isa::avx512>();
#endif

}  // namespace

bool supported(Isa isa) {
  if (isa == Isa::baseline) return true;
  return may_use(isa == Isa::avx2 ? IsaLevel::avx2 : IsaLevel::avx512);
}

Isa best_isa() {
  for (Isa isa : {Isa::avx512, Isa::avx2}) {
    if (supported(isa)) return isa;
  }
  return Isa::baseline;
}

const Table& table(Isa isa) {
  DUCTILE_CHECK(supported(isa), "instruction set {}", static_cast<int>(isa));
#ifdef __x86_64__
  if (isa == Isa::avx2) return kAvx2;
  if (isa == Isa::avx512) return kAvx512;
#endif
  return kBaseline;
}

const Table& best() {
  static const Table& chosen = table(best_isa());
  return chosen;
}

}  // namespace ductile::optim::kernels
