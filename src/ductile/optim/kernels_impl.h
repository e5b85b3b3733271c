#pragma once

#include <cstdint>
#include <span>

// The inner loops of this module, one set for each instruction set. All sets give the same bits:
// they are one source, compiled without contraction. Pointers of one call do not overlap.
namespace ductile::optim::kernels {

enum class Isa { baseline, avx2, avx512 };

bool supported(Isa isa);
Isa best_isa();  // the widest this processor and operating system support

// g' = inner * (gradient_scale * g + decay * w);  u = momentum * u + g';
// w -= outer * (nesterov ? g' + momentum * u : u).
// SGD: inner 1, outer lr. LARS: lr and trust ratio in inner ("inside") or in outer ("outside").
struct MomentumScalars {
  float gradient_scale, decay, momentum, inner, outer;
};

// g' = gradient_scale * g + l2 * w;  m = beta1 * m + (1 - beta1) * g';
// v = beta2 * v + (1 - beta2) * g'^2;  w = keep * w - rate * m / (sqrt(v) * root_scale + eps).
// keep = 1 - lr * decoupled decay; rate = lr / (1 - beta1^t); root_scale = (1 - beta2^t)^-1/2.
struct AdamScalars {
  float gradient_scale, l2, beta1, one_minus_beta1, beta2, one_minus_beta2, keep, rate, root_scale,
      eps;
};

// Moments as in Adam, then r = first_scale * m / (sqrt(v) * root_scale + eps) + decay * w.
struct LambScalars {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, first_scale, root_scale,
      eps, decay;
};

// NAdamW. Moments as in Adam without l2, then
// w = keep * w - rate * (m_part * m + g_part * g') / (sqrt(v) * root_scale + eps).
struct NadamScalars {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, keep, rate, m_part, g_part,
      root_scale, eps;
};

// AdEMAMix. Moments as in Adam without l2, and m2 = beta3 * m2 + (1 - beta3) * g'; then
// w = keep * w - rate * (m_part * m + alpha * m2) / (sqrt(v) * root_scale + eps).
struct AdemamixScalars {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, beta3, one_minus_beta3,
      keep, rate, m_part, alpha, root_scale, eps;
};

// Schedule-Free AdamW. v as in Adam; z -= rate * g' / (sqrt(v) + eps) + decay * y;
// x += c * (z - x); y = (1 - beta1) * z + beta1 * x.
struct ScheduleFreeScalars {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, rate, decay, c, eps;
};

// Neumann. d = gradient_scale * g + l2 * w + force * (w - v);  m = mu * m - m_rate * d;
// w += w_mu * m - w_rate * d;  v = w + gamma * (v - w).
struct NeumannScalars {
  float gradient_scale, l2, force, mu, m_rate, w_mu, w_rate, gamma;
};

// The diagonal of the BFGS update of a diagonal h:
// h = |h - (h * p * p * h + eps) / php + (y * y + eps) / yp|.
struct BfgsScalars {
  float php, yp, eps;
};

// tile() works on this part of a product of matrices.
inline constexpr int64_t kTileRows = 6, kTileColumns = 16;

struct Table {
  void (*sgd)(float* w, const float* g, int64_t n, const MomentumScalars& s);  // no momentum
  void (*momentum)(float* w, const float* g, float* u, int64_t n, const MomentumScalars& s);
  void (*nesterov)(float* w, const float* g, float* u, int64_t n, const MomentumScalars& s);
  void (*adam)(float* w, const float* g, float* m, float* v, int64_t n, const AdamScalars& s);
  // The direction r from the moments as they will be; and the step: moments, then w -= rate * r.
  void (*lamb_direction)(float* r, const float* w, const float* g, const float* m, const float* v,
                         int64_t n, const LambScalars& s);
  void (*lamb_apply)(float* w, const float* g, float* m, float* v, int64_t n, float rate,
                     const LambScalars& s);

  void (*nadam)(float* w, const float* g, float* m, float* v, int64_t n, const NadamScalars& s);
  void (*ademamix)(float* w, const float* g, float* m, float* m2, float* v, int64_t n,
                   const AdemamixScalars& s);
  void (*schedule_free)(float* y, const float* g, float* z, float* x, float* v, int64_t n,
                        const ScheduleFreeScalars& s);
  void (*neumann)(float* w, const float* g, float* m, float* v, int64_t n, const NeumannScalars& s);
  void (*bfgs)(float* h, const float* p, const float* y, int64_t n, const BfgsScalars& s);
  void (*divide)(float* out, const float* x, const float* h, int64_t n,
                 float eps);  // x / (h + eps)

  // out = a * x + b * y; `out` may be x or y.
  void (*blend)(float* out, float a, const float* x, float b, const float* y, int64_t n);
  void (*multiply)(float* out, const float* x, const float* y, int64_t n);  // as blend()
  void (*add_scaled)(float* out, const float* x, int64_t n, float a);       // out += a * x
  // c += a b for a tile c, whose rows are `stride` apart: a has kTileRows values for each k, b has
  // kTileColumns. Each element adds its products in the order of k, each rounded.
  void (*tile)(float* c, int64_t stride, const float* a, const float* b, int64_t depth);

  void (*ema)(float* average, const float* w, int64_t n, float rate);  // a += rate * (w - a)
  void (*add)(float* a, const float* b, int64_t n);                    // a += b
  // Sum of squares in double: 16 interleaved sums, then a fixed tree.
  double (*sum_squares)(const float* x, int64_t n);
  double (*dot)(const float* x, const float* y, int64_t n);  // in the same order

  void (*to_bf16)(uint16_t* out, const float* in, int64_t n);
  void (*from_bf16)(float* out, const uint16_t* in, int64_t n);
  void (*to_f16)(uint16_t* out, const float* in, int64_t n);
  void (*from_f16)(float* out, const uint16_t* in, int64_t n);
};

const Table& table(Isa isa);
// table(best_isa()).
const Table& best();

}  // namespace ductile::optim::kernels
