#pragma once

#include <stdint.h>

#include "ductile/nn/kernels/isa.h"
#include "ductile/nn/kernels/winograd_points.h"

// The filter side of Winograd F(4x4, 3x3), with filters side by side. Plain loops over the vector
// type's lanes: V only tells the instruction set that the compiler vectorises for.
namespace ductile::nn::kernels {

// u[f * n + j] = (G g[., j] G')[f] for n filters; g: [9, n], half: [18, n].
template <class V>
void winograd_filter_tiles(const float* g, int64_t n, float* half, float* u) {
  using winograd::kG;
  for (int i = 0; i < 6; ++i)
    for (int b = 0; b < 3; ++b)
      for (int64_t j = 0; j < n; ++j)
        half[(3 * i + b) * n + j] =
            kG[i][0] * g[b * n + j] + kG[i][1] * g[(3 + b) * n + j] + kG[i][2] * g[(6 + b) * n + j];
  for (int i = 0; i < 6; ++i)
    for (int k = 0; k < 6; ++k)
      for (int64_t j = 0; j < n; ++j)
        u[(6 * i + k) * n + j] = kG[k][0] * half[3 * i * n + j] +
                                 kG[k][1] * half[(3 * i + 1) * n + j] +
                                 kG[k][2] * half[(3 * i + 2) * n + j];
}

// Puts row `r` of 36 matrices [rows, columns], given as [36, columns], into their panels.
template <class V>
void winograd_put_row(const float* row, int64_t r, int64_t rows, int64_t columns, float* u) {
  const int64_t panel = panel_of(columns);
  for (int f = 0; f < 36; ++f)
    for (int64_t j = 0; j < columns; j += panel) {
      const float* from = row + f * columns + j;
      float* to = u + f * rows * columns + j * rows + r * panel;
      for (int64_t k = 0; k < panel; ++k) to[k] = from[k];
    }
}

template <class V>
void winograd_filter(const float* weight, int64_t in, int64_t out, int64_t first, int64_t last,
                     float* work, float* u) {
  for (int64_t i = first; i < last; ++i) {
    for (int64_t o = 0; o < out; ++o)
      for (int t = 0; t < 9; ++t) work[t * out + o] = weight[(o * in + i) * 9 + t];
    winograd_filter_tiles<V>(work, out, work + 9 * out, work + 27 * out);
    winograd_put_row<V>(work + 27 * out, i, in, out, u);
  }
}

template <class V>
void winograd_filter_rotated(const float* weight, int64_t in, int64_t out, int64_t first,
                             int64_t last, float* work, float* u) {
  for (int64_t o = first; o < last; ++o) {
    for (int64_t i = 0; i < in; ++i)
      for (int t = 0; t < 9; ++t) work[(8 - t) * in + i] = weight[(o * in + i) * 9 + t];
    winograd_filter_tiles<V>(work, in, work + 9 * in, work + 27 * in);
    winograd_put_row<V>(work + 27 * in, o, out, in, u);
  }
}

template <class V>
void winograd_filter_grad(const float* du, int64_t parts, int64_t in, int64_t out, int64_t first,
                          int64_t last, float* work, float* dw) {
  using winograd::kG;
  const int64_t panel = panel_of(out);
  float* sum = work;              // [36, out]
  float* half = work + 36 * out;  // [18, out]
  for (int64_t i = first; i < last; ++i) {
    for (int f = 0; f < 36; ++f)
      for (int64_t j = 0; j < out; j += panel) {
        float* s = sum + f * out + j;
        const float* p = du + f * in * out + j * in + i * panel;
        for (int64_t k = 0; k < panel; ++k) s[k] = p[k];
        for (int64_t part = 1; part < parts; ++part) {
          p += 36 * in * out;
          for (int64_t k = 0; k < panel; ++k) s[k] += p[k];
        }
      }
    for (int a = 0; a < 3; ++a)
      for (int f = 0; f < 6; ++f)
        for (int64_t o = 0; o < out; ++o) {
          float x = 0;
          for (int r = 0; r < 6; ++r) x += kG[r][a] * sum[(6 * r + f) * out + o];
          half[(6 * a + f) * out + o] = x;
        }
    for (int a = 0; a < 3; ++a)
      for (int b = 0; b < 3; ++b)
        for (int64_t o = 0; o < out; ++o) {
          float x = 0;
          for (int f = 0; f < 6; ++f) x += kG[f][b] * half[(6 * a + f) * out + o];
          dw[(o * in + i) * 9 + 3 * a + b] = x;
        }
  }
}

}  // namespace ductile::nn::kernels
