// Compiled with -mavx2 -mfma.
#include "ductile/nn/kernels/amx_twin.h"

#include <immintrin.h>

namespace ductile::nn::kernels {
namespace {

constexpr int64_t kBlock = 16;  // pairs

float half_of(float pair, bool second) {
  uint32_t bits;
  __builtin_memcpy(&bits, &pair, sizeof(bits));
  bits = second ? bits & 0xffff0000 : bits << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

float fma_of(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

// c and the products of row r of a and column j of b, which lies at `b`.
[[gnu::noinline]] float element(const Gemm& g, int64_t r, const float* b, float c) {
  for (int64_t first = 0; first < g.depth * g.runs; first += kBlock) {
    float sums[2] = {0, 0};
    for (int64_t k = first; k < first + kBlock; ++k) {
      float x = 0, y = 0;
      if (k < g.depth * g.runs) {
        const int64_t run = k / g.depth, d = k % g.depth;
        x = g.a[r * g.a_row + run * g.a_run + d * g.a_depth];
        y = b[run * g.b_run + d * g.b_depth];
      }
      sums[0] = fma_of(half_of(x, false), half_of(y, false), sums[0]);
      sums[1] = fma_of(half_of(x, true), half_of(y, true), sums[1]);
    }
    c += sums[0] + sums[1];
  }
  return c;
}

}  // namespace

void tiles_twin(const Gemm& g) {
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // no exceptions, to the nearest, values below 2^-126 are zero
  for (int64_t r = 0; r < g.rows; ++r)
    for (int64_t j = 0; j < g.cols; ++j) {
      const auto at = [&](int64_t apart) {
        return g.panel == 0 ? j : j / g.panel * apart + j % g.panel;
      };
      float* const c = g.c + at(g.c_panel) + r * g.c_row;
      *c = element(g, r, g.b + at(g.b_panel), g.accumulate ? *c : 0);
    }
  _mm_setcsr(before);
}

}  // namespace ductile::nn::kernels
