#pragma once

#include "ductile/nn/kernels/gemm_impl.h"
#include "ductile/nn/kernels/isa.h"
#include "ductile/nn/kernels/winograd_filter_impl.h"
#include "ductile/nn/kernels/winograd_impl.h"

// The kernels of Bf16Isa on a vector type V that has, besides what the others have,
//   pair(first, second)     both rounded to bf16, as pairs
//   put_bf16(pointer, x)    x rounded to bf16
//   add_pairs(a, b, c)      c + second(a) * second(b) + first(a) * first(b)
// They take values below 2^-126 for zero.
namespace ductile::nn::kernels {

// V with pairs of values in its lanes.
template <class V>
struct Pairs : V {
  static typename V::Reg fma(typename V::Reg a, typename V::Reg b, typename V::Reg c) {
    return V::add_pairs(a, b, c);
  }
};

template <class V>
void round_bf16(const float* src, uint16_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += V::lanes) V::put_bf16(dst + i, V::load(src + i));
}

template <class V>
void pair_bf16(const float* first, const float* second, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += V::lanes)
    V::store(dst + i, V::pair(V::load(first + i), second ? V::load(second + i) : V::zero()));
}

template <class V>
void pair_values(const uint16_t* first, const uint16_t* second, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = first[i] | static_cast<uint32_t>(second[i]) << 16;
    __builtin_memcpy(dst + i, &bits, sizeof(bits));
  }
}

template <class V>
void winograd_input_bf16(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                         float* out, int64_t stride) {
  for (int64_t t = 0; t < n; ++t)
    for (int64_t c = 0; c < channels; c += V::lanes) {
      float* dst = out + (t * channels + c) / 2;
      input_tile<V>(tiles[t] + c, row, channels, [&](int f, typename V::Reg y) {
        V::put_bf16(reinterpret_cast<uint16_t*>(dst + f * stride), y);
      });
    }
}

// tile(t, c, put) transforms a vector of channels of one tile.
template <class V, class Tile>
[[gnu::always_inline]] inline void pair_tiles(int64_t n, int64_t channels, int64_t panel,
                                              int64_t rows, float* out, int64_t stride,
                                              const Tile& tile) {
  alignas(64) float first[36 * V::lanes];
  for (int64_t t = 0; t < n; t += 2)
    for (int64_t c = 0; c < channels; c += V::lanes) {
      float* dst = out + c / panel * rows * panel + t / 2 * panel + c % panel;
      tile(t, c, [&](int f, typename V::Reg y) { V::store(first + f * V::lanes, y); });
      const auto put = [&](int f, typename V::Reg y) {
        V::store(dst + f * stride, V::pair(V::load(first + f * V::lanes), y));
      };
      if (t + 1 < n) {
        tile(t + 1, c, put);
      } else {
        for (int f = 0; f < 36; ++f) put(f, V::zero());
      }
    }
}

template <class V>
void winograd_input_pairs(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                          int64_t panel, int64_t rows, float* out, int64_t stride) {
  pair_tiles<V>(n, channels, panel, rows, out, stride, [&](int64_t t, int64_t c, const auto& put) {
    input_tile<V>(tiles[t] + c, row, channels, put);
  });
}

template <class V>
void winograd_grad_pairs(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                         int64_t panel, int64_t rows, float* out, int64_t stride) {
  pair_tiles<V>(n, channels, panel, rows, out, stride, [&](int64_t t, int64_t c, const auto& put) {
    grad_tile<V>(tiles[t] + c, row, channels, put);
  });
}

// Rows 2 * r and 2 * r + 1 of 36 matrices, each row as [36, columns], into panels of pairs.
template <class V>
void winograd_put_pairs(const float* first, const float* second, int64_t r, int64_t rows,
                        int64_t columns, float* u) {
  const int64_t panel = panel_of(columns);
  for (int f = 0; f < 36; ++f)
    for (int64_t j = 0; j < columns; j += V::lanes) {
      float* to = u + (f * columns + j / panel * panel) * rows + r * panel + j % panel;
      V::store(to, V::pair(V::load(first + f * columns + j), V::load(second + f * columns + j)));
    }
}

template <class V>
void winograd_filter_bf16(const float* weight, int64_t in, int64_t out, int64_t first, int64_t last,
                          float* work, float* u) {
  float* const half = work + 9 * out;
  float* const done = work + 27 * out;
  for (int64_t p = first; p < last; ++p) {
    for (int64_t i = 2 * p; i < 2 * p + 2; ++i) {
      for (int64_t o = 0; o < out; ++o)
        for (int t = 0; t < 9; ++t) work[t * out + o] = weight[(o * in + i) * 9 + t];
      winograd_filter_tiles<V>(work, out, half, done + (i - 2 * p) * 36 * out);
    }
    winograd_put_pairs<V>(done, done + 36 * out, p, in / 2, out, u);
  }
}

template <class V>
void winograd_filter_rotated_bf16(const float* weight, int64_t in, int64_t out, int64_t first,
                                  int64_t last, float* work, float* u) {
  float* const half = work + 9 * in;
  float* const done = work + 27 * in;
  for (int64_t p = first; p < last; ++p) {
    for (int64_t o = 2 * p; o < 2 * p + 2; ++o) {
      for (int64_t i = 0; i < in; ++i)
        for (int t = 0; t < 9; ++t) work[(8 - t) * in + i] = weight[(o * in + i) * 9 + t];
      winograd_filter_tiles<V>(work, in, half, done + (o - 2 * p) * 36 * in);
    }
    winograd_put_pairs<V>(done, done + 36 * in, p, out / 2, in, u);
  }
}

template <class V>
constexpr Bf16Isa make_bf16_isa(const char* name) {
  return Bf16Isa{name,
                 V::lanes,
                 gemm<Pairs<V>>,
                 round_bf16<V>,
                 pair_bf16<V>,
                 pair_values<V>,
                 winograd_input_bf16<V>,
                 winograd_input_pairs<V>,
                 winograd_grad_pairs<V>,
                 winograd_filter_bf16<V>,
                 winograd_filter_rotated_bf16<V>};
}

}  // namespace ductile::nn::kernels
