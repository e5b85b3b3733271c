#pragma once

#include "ductile/nn/kernels/isa.h"

// Register-blocked matrix product on a vector type V (see simd_avx2_impl.h).
namespace ductile::nn::kernels {

template <class V, int R, int N>
void gemm_block(const Gemm& g, const float* a, const float* b, float* c) {
  const int64_t a_row = g.a_row, a_depth = g.a_depth, b_depth = g.b_depth, c_row = g.c_row;
  const int64_t depth = g.depth;
  typename V::Reg acc[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n)
      acc[r][n] = g.accumulate ? V::load(c + r * c_row + n * V::lanes) : V::zero();

  for (int64_t run = 0; run < g.runs; ++run) {
    // Every third row has its own pointer, so that the addresses fit x86's base + index * {1, 2}.
    constexpr int kPointers = (R + 2) / 3;
    const float* rows[kPointers];
#pragma GCC unroll 8
    for (int p = 0; p < kPointers; ++p) rows[p] = a + run * g.a_run + 3 * p * a_row;
    const float* q = b + run * g.b_run;
    for (int64_t d = 0; d < depth; ++d) {
      typename V::Reg bv[N];
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) bv[n] = V::load(q + n * V::lanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename V::Reg av = V::all(rows[r / 3][(r % 3) * a_row]);
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) acc[r][n] = V::fma(av, bv[n], acc[r][n]);
      }
      q += b_depth;
#pragma GCC unroll 8
      for (int p = 0; p < kPointers; ++p) rows[p] += a_depth;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) V::store(c + r * c_row + n * V::lanes, acc[r][n]);
}

// gemm_block of `rows` rows, at most R.
template <class V, int R, int N>
void gemm_rows(const Gemm& g, int64_t rows, const float* a, const float* b, float* c) {
  if constexpr (R > 0) {
    if (rows == R) return gemm_block<V, R, N>(g, a, b, c);
    gemm_rows<V, R - 1, N>(g, rows, a, b, c);
  }
}

inline int64_t panel_offset(int64_t column, int64_t panel, int64_t apart) {
  return panel == 0 ? column : column / panel * apart + column % panel;
}

// Few rows leave the multipliers waiting for each other's results, so the last rows are shared out
// evenly over two blocks where one would be left with less than two thirds.
template <class V, int N>
void gemm_columns(const Gemm& g, int64_t column) {
  constexpr int64_t kFull = V::gemm_rows;
  const float* const b = g.b + panel_offset(column, g.panel, g.b_panel);
  float* const c = g.c + panel_offset(column, g.panel, g.c_panel);
  for (int64_t r = 0; r < g.rows;) {
    const int64_t left = g.rows - r;
    int64_t rows = left < kFull ? left : kFull;
    if (left > kFull && left < kFull + kFull * 2 / 3) rows = (left + 1) / 2;
    gemm_rows<V, V::gemm_rows, N>(g, rows, g.a + r * g.a_row, b, c + r * g.c_row);
    r += rows;
  }
}

template <class V>
void gemm(const Gemm& g) {
  int64_t column = 0;
  for (; column + 2 * V::lanes <= g.cols; column += 2 * V::lanes) gemm_columns<V, 2>(g, column);
  if (column < g.cols) gemm_columns<V, 1>(g, column);
}

}  // namespace ductile::nn::kernels
