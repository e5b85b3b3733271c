#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "ductile/optim/kernels_impl.h"

// The loops of the table, but for conversions to and from 16 bits: kernels.cc compiles them for
// each instruction set. No type but float stands here for a weight, so that
// double_precision_test.cc can read the same lines with double in its place.
namespace ductile::optim::kernels::body {

#define DUCTILE_INLINE [[gnu::always_inline]] inline

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
    w[i] = s.keep * w[i] - s.rate * (first / (std::sqrt(second) * s.root_scale + s.eps));
  }
}

DUCTILE_INLINE float lamb_ratio(float w, float m, float v, const LambScalars& s) {
  return s.first_scale * m / (std::sqrt(v) * s.root_scale + s.eps) + s.decay * w;
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
    w[i] = s.keep * w[i] - s.rate * (direction / (std::sqrt(second) * s.root_scale + s.eps));
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
    w[i] = s.keep * w[i] - s.rate * (direction / (std::sqrt(second) * s.root_scale + s.eps));
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
    const float iterate = z[i] - (s.rate * (d / (std::sqrt(second) + s.eps)) + s.decay * y[i]);
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
    h[i] = std::fabs(next);
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

}  // namespace ductile::optim::kernels::body
