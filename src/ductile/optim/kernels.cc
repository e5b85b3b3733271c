#include <array>
#include <bit>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "ductile/base/error.h"
#include "ductile/base/isa.h"
#include "ductile/optim/kernels_impl.h"

// This file is compiled with -O3 and without contraction, trapping and errno (CMakeLists.txt), so
// the plain loops below vectorise and every instruction set rounds alike.

namespace ductile::optim::kernels {
namespace {

#define DUCTILE_INLINE [[gnu::always_inline]] inline

namespace body {

DUCTILE_INLINE void sgd(float* w, const float* g, int64_t n, const MomentumScalars& scalars) {
  const MomentumScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.inner * (s.gradient_scale * g[i] + s.decay * w[i]);
    w[i] -= s.outer * d;
  }
}

DUCTILE_INLINE void momentum(float* w, const float* g, float* u, int64_t n,
                             const MomentumScalars& scalars) {
  const MomentumScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.inner * (s.gradient_scale * g[i] + s.decay * w[i]);
    const float next = s.momentum * u[i] + d;
    u[i] = next;
    w[i] -= s.outer * next;
  }
}

DUCTILE_INLINE void nesterov(float* w, const float* g, float* u, int64_t n,
                             const MomentumScalars& scalars) {
  const MomentumScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.inner * (s.gradient_scale * g[i] + s.decay * w[i]);
    const float next = s.momentum * u[i] + d;
    u[i] = next;
    w[i] -= s.outer * (d + s.momentum * next);
  }
}

DUCTILE_INLINE void adam(float* w, const float* g, float* m, float* v, int64_t n,
                         const AdamScalars& scalars) {
  const AdamScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.gradient_scale * g[i] + s.l2 * w[i];
    const float first = s.beta1 * m[i] + s.one_minus_beta1 * d;
    const float second = s.beta2 * v[i] + s.one_minus_beta2 * d * d;
    m[i] = first;
    v[i] = second;
    w[i] = s.keep * w[i] - s.rate * (first / (__builtin_sqrtf(second) * s.root_scale + s.eps));
  }
}

DUCTILE_INLINE float lamb_ratio(float w, float m, float v, const LambScalars& s) {
  return s.first_scale * m / (__builtin_sqrtf(v) * s.root_scale + s.eps) + s.decay * w;
}

DUCTILE_INLINE void lamb_direction(float* r, const float* w, const float* g, const float* m,
                                   const float* v, int64_t n, const LambScalars& scalars) {
  const LambScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.gradient_scale * g[i];
    const float first = s.beta1 * m[i] + s.one_minus_beta1 * d;
    const float second = s.beta2 * v[i] + s.one_minus_beta2 * d * d;
    r[i] = lamb_ratio(w[i], first, second, s);
  }
}

DUCTILE_INLINE void lamb_apply(float* w, const float* g, float* m, float* v, int64_t n, float rate,
                               const LambScalars& scalars) {
  const LambScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.gradient_scale * g[i];
    const float first = s.beta1 * m[i] + s.one_minus_beta1 * d;
    const float second = s.beta2 * v[i] + s.one_minus_beta2 * d * d;
    m[i] = first;
    v[i] = second;
    w[i] -= rate * lamb_ratio(w[i], first, second, s);
  }
}

DUCTILE_INLINE void nadam(float* w, const float* g, float* m, float* v, int64_t n,
                          const NadamScalars& scalars) {
  const NadamScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.gradient_scale * g[i];
    const float first = s.beta1 * m[i] + s.one_minus_beta1 * d;
    const float second = s.beta2 * v[i] + s.one_minus_beta2 * d * d;
    m[i] = first;
    v[i] = second;
    const float direction = s.m_part * first + s.g_part * d;
    w[i] = s.keep * w[i] - s.rate * (direction / (__builtin_sqrtf(second) * s.root_scale + s.eps));
  }
}

DUCTILE_INLINE void ademamix(float* w, const float* g, float* m, float* m2, float* v, int64_t n,
                             const AdemamixScalars& scalars) {
  const AdemamixScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.gradient_scale * g[i];
    const float first = s.beta1 * m[i] + s.one_minus_beta1 * d;
    const float slow = s.beta3 * m2[i] + s.one_minus_beta3 * d;
    const float second = s.beta2 * v[i] + s.one_minus_beta2 * d * d;
    m[i] = first;
    m2[i] = slow;
    v[i] = second;
    const float direction = s.m_part * first + s.alpha * slow;
    w[i] = s.keep * w[i] - s.rate * (direction / (__builtin_sqrtf(second) * s.root_scale + s.eps));
  }
}

DUCTILE_INLINE void schedule_free(float* y, const float* g, float* z, float* x, float* v, int64_t n,
                                  const ScheduleFreeScalars& scalars) {
  const ScheduleFreeScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.gradient_scale * g[i];
    const float second = s.beta2 * v[i] + s.one_minus_beta2 * d * d;
    v[i] = second;
    const float iterate =
        z[i] - (s.rate * (d / (__builtin_sqrtf(second) + s.eps)) + s.decay * y[i]);
    const float average = x[i] + s.c * (iterate - x[i]);
    z[i] = iterate;
    x[i] = average;
    y[i] = s.one_minus_beta1 * iterate + s.beta1 * average;
  }
}

DUCTILE_INLINE void neumann(float* w, const float* g, float* m, float* v, int64_t n,
                            const NeumannScalars& scalars) {
  const NeumannScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float d = s.gradient_scale * g[i] + s.l2 * w[i] + s.force * (w[i] - v[i]);
    const float iterate = s.mu * m[i] - s.m_rate * d;
    const float next = w[i] + (s.w_mu * iterate - s.w_rate * d);
    m[i] = iterate;
    w[i] = next;
    v[i] = next + s.gamma * (v[i] - next);
  }
}

DUCTILE_INLINE void bfgs(float* h, const float* p, const float* y, int64_t n,
                         const BfgsScalars& scalars) {
  const BfgsScalars s = scalars;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float hp = h[i] * p[i];
    const float next = h[i] - (hp * p[i] * h[i] + s.eps) / s.php + (y[i] * y[i] + s.eps) / s.yp;
    h[i] = __builtin_fabsf(next);
  }
}

DUCTILE_INLINE void divide(float* out, const float* x, const float* h, int64_t n, float eps) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] / (h[i] + eps);
}

DUCTILE_INLINE void blend(float* out, float a, const float* x, float b, const float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a * x[i] + b * y[i];
}

DUCTILE_INLINE void multiply(float* out, const float* x, const float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * y[i];
}

DUCTILE_INLINE void add_scaled(float* out, const float* x, int64_t n, float a) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] += a * x[i];
}

DUCTILE_INLINE void tile(float* c, int64_t stride, const float* a, const float* b, int64_t depth) {
  using Row = float __attribute__((vector_size(kTileColumns * sizeof(float))));
  Row sums[kTileRows];
  for (int64_t i = 0; i < kTileRows; ++i) std::memcpy(&sums[i], c + i * stride, sizeof(Row));
  for (int64_t k = 0; k < depth; ++k) {
    Row row;
    std::memcpy(&row, b + k * kTileColumns, sizeof row);
    for (int64_t i = 0; i < kTileRows; ++i) sums[i] += a[k * kTileRows + i] * row;
  }
  for (int64_t i = 0; i < kTileRows; ++i) std::memcpy(c + i * stride, &sums[i], sizeof(Row));
}

DUCTILE_INLINE void ema(float* average, const float* w, int64_t n, float rate) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) average[i] += rate * (w[i] - average[i]);
}

DUCTILE_INLINE void add(float* a, const float* b, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) a[i] += b[i];
}

// A product of floats is exact in double, so lanes and tree alone decide the rounding.
DUCTILE_INLINE double dot(const float* x, const float* y, int64_t n) {
  double lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) {
    lanes[i % 16] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0];
}

DUCTILE_INLINE double sum_squares(const float* x, int64_t n) { return dot(x, x, n); }

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

}  // namespace body

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
