#include "ductile/nn/kernels/winograd_filter.h"

#include <vector>

#include "ductile/nn/kernels/winograd_points.h"

namespace ductile::nn::kernels {
namespace {

using winograd::kG;

// u[f * stride + j] = (G g[., j] G')[f] for `n` filters side by side; g: [9, n].
void transform(const float* g, int64_t n, float* half, float* u, int64_t stride) {
  for (int i = 0; i < 6; ++i)
    for (int b = 0; b < 3; ++b)
      for (int64_t j = 0; j < n; ++j)
        half[(3 * i + b) * n + j] =
            kG[i][0] * g[b * n + j] + kG[i][1] * g[(3 + b) * n + j] + kG[i][2] * g[(6 + b) * n + j];
  for (int i = 0; i < 6; ++i)
    for (int k = 0; k < 6; ++k)
      for (int64_t j = 0; j < n; ++j)
        u[(6 * i + k) * stride + j] = kG[k][0] * half[3 * i * n + j] +
                                      kG[k][1] * half[(3 * i + 1) * n + j] +
                                      kG[k][2] * half[(3 * i + 2) * n + j];
}

}  // namespace

void winograd_filter(const float* weight, int64_t in, int64_t out, int64_t first, int64_t last,
                     float* u) {
  std::vector<float> g(9 * out), half(18 * out);
  for (int64_t i = first; i < last; ++i) {
    for (int64_t o = 0; o < out; ++o)
      for (int t = 0; t < 9; ++t) g[t * out + o] = weight[(o * in + i) * 9 + t];
    transform(g.data(), out, half.data(), u + i * out, in * out);
  }
}

void winograd_filter_rotated(const float* weight, int64_t in, int64_t out, int64_t first,
                             int64_t last, float* u) {
  std::vector<float> g(9 * in), half(18 * in);
  for (int64_t o = first; o < last; ++o) {
    for (int64_t i = 0; i < in; ++i)
      for (int t = 0; t < 9; ++t) g[(8 - t) * in + i] = weight[(o * in + i) * 9 + t];
    transform(g.data(), in, half.data(), u + o * in, in * out);
  }
}

void winograd_filter_grad(const float* du, int64_t parts, int64_t in, int64_t out, int64_t first,
                          int64_t last, float* dw) {
  std::vector<float> sum(36 * out), half(18 * out);
  for (int64_t i = first; i < last; ++i) {
    for (int f = 0; f < 36; ++f) {
      float* s = sum.data() + f * out;
      const float* p = du + (f * in + i) * out;
      for (int64_t o = 0; o < out; ++o) s[o] = p[o];
      for (int64_t part = 1; part < parts; ++part) {
        p += 36 * in * out;
        for (int64_t o = 0; o < out; ++o) s[o] += p[o];
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
