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

  void (*ema)(float* average, const float* w, int64_t n, float rate);  // a += rate * (w - a)
  void (*add)(float* a, const float* b, int64_t n);                    // a += b
  // Sum of squares in double: 16 interleaved sums, then a fixed tree.
  double (*sum_squares)(const float* x, int64_t n);

  void (*to_bf16)(uint16_t* out, const float* in, int64_t n);
  void (*from_bf16)(float* out, const uint16_t* in, int64_t n);
  void (*to_f16)(uint16_t* out, const float* in, int64_t n);
  void (*from_f16)(float* out, const uint16_t* in, int64_t n);
};

const Table& table(Isa isa);
// table(best_isa()).
const Table& best();

}  // namespace ductile::optim::kernels
