#include "ductile/data/kernels.h"

#include <algorithm>
#include <cstring>

namespace ductile::data {
namespace {

void normalize(const uint8_t* in, const float* scale, const float* bias, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i]) * scale[i] + bias[i];
}

void mirror(const uint8_t* in, uint8_t* out, int64_t width, int64_t channels) {
  if (channels == 1) {
    std::reverse_copy(in, in + width, out);
    return;
  }
  if (channels == 3) {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* from = in + 3 * (width - 1 - x);
      out[3 * x] = from[0];
      out[3 * x + 1] = from[1];
      out[3 * x + 2] = from[2];
    }
    return;
  }
  for (int64_t x = 0; x < width; ++x) {
    std::memcpy(out + x * channels, in + (width - 1 - x) * channels, static_cast<size_t>(channels));
  }
}

void horizontal(const uint8_t* in, const int32_t* first, const int16_t* weights, int quads,
                int64_t out_width, int16_t* out) {
  for (int64_t x = 0; x < out_width; ++x) {
    int32_t sum[4] = {64, 64, 64, 64};
    const uint8_t* pixel = in + 4 * static_cast<int64_t>(first[x]);
    for (int q = 0; q < quads; ++q, weights += 16, pixel += 16) {
      for (int k = 0; k < 4; ++k) {
        const int32_t w = weights[k / 2 * 8 + k % 2];
        for (int c = 0; c < 4; ++c) sum[c] += pixel[4 * k + c] * w;
      }
    }
    for (int c = 0; c < 4; ++c) out[4 * x + c] = static_cast<int16_t>(sum[c] >> 7);
  }
}

void vertical(const int16_t* const* rows, const int16_t* weights, int taps, int64_t width,
              const float* scale, const float* bias, int64_t channels, float* const* out_c,
              int64_t step) {
  for (int64_t x = 0; x < width; ++x) {
    for (int64_t c = 0; c < channels; ++c) {
      int32_t sum = 0;
      for (int k = 0; k < taps; ++k) sum += rows[k][4 * x + c] * weights[k];
      out_c[c][x * step] = static_cast<float>(sum) * scale[c] + bias[c];
    }
  }
}

}  // namespace

const Kernels& scalar_kernels() {
  static constexpr Kernels table{"scalar", normalize, mirror, horizontal, vertical};
  return table;
}

const Kernels& kernels() {
  static const Kernels* const best = [] {
    if (const Kernels* k = avx512_kernels()) return k;
    if (const Kernels* k = avx2_kernels()) return k;
    return &scalar_kernels();
  }();
  return *best;
}

}  // namespace ductile::data
