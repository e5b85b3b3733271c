#pragma once

#include "ductile/nn/kernels/norm_impl.h"
#include "ductile/nn/kernels/storage_impl.h"
#include "ductile/nn/kernels/winograd_points.h"

// Winograd's minimal filtering F(4x4, 3x3) (Lavin and Gray 2016, section 4) on a vector type V:
// Y = A' [ (G g G') * (B' d B) ] A, here the data-side transforms. Rows of the matrices follow from
// the points in winograd_points.h; even and odd parts are shared between the points +p and -p.
namespace ductile::nn::kernels {

// B' x for six values.
template <class V>
void winograd_bt(const typename V::Reg* x, typename V::Reg* out) {
  using namespace winograd;
  const auto even_a = V::fnma(V::all(kB2), x[2], x[4]), odd_a = V::fnma(V::all(kB2), x[1], x[3]);
  const auto even_b = V::fnma(V::all(kA2), x[2], x[4]), odd_b = V::fnma(V::all(kA2), x[1], x[3]);
  out[0] = V::fnma(V::all(kA2 + kB2), x[2], V::add(x[0], x[4]));
  out[1] = V::fma(V::all(kA), odd_a, even_a);
  out[2] = V::fnma(V::all(kA), odd_a, even_a);
  out[3] = V::fma(V::all(kB), odd_b, even_b);
  out[4] = V::fnma(V::all(kB), odd_b, even_b);
  out[5] = V::fnma(V::all(kA2 + kB2), x[3], V::add(x[1], x[5]));
}

// A' m for six values.
template <class V>
void winograd_at(const typename V::Reg* m, typename V::Reg* out) {
  using namespace winograd;
  const auto sum_a = V::add(m[1], m[2]), diff_a = V::sub(m[1], m[2]);
  const auto sum_b = V::add(m[3], m[4]), diff_b = V::sub(m[3], m[4]);
  out[0] = V::add(V::add(m[0], sum_a), sum_b);
  out[1] = V::fma(V::all(kA), diff_a, V::mul(V::all(kB), diff_b));
  out[2] = V::fma(V::all(kA2), sum_a, V::mul(V::all(kB2), sum_b));
  out[3] = V::fma(V::all(kA * kA2), diff_a, V::fma(V::all(kB * kB2), diff_b, m[5]));
}

// A y for four values.
template <class V>
void winograd_a(const typename V::Reg* y, typename V::Reg* out) {
  using namespace winograd;
  const auto even_a = V::fma(V::all(kA2), y[2], y[0]), odd_a = V::fma(V::all(kA2), y[3], y[1]);
  const auto even_b = V::fma(V::all(kB2), y[2], y[0]), odd_b = V::fma(V::all(kB2), y[3], y[1]);
  out[0] = y[0];
  out[1] = V::fma(V::all(kA), odd_a, even_a);
  out[2] = V::fnma(V::all(kA), odd_a, even_a);
  out[3] = V::fma(V::all(kB), odd_b, even_b);
  out[4] = V::fnma(V::all(kB), odd_b, even_b);
  out[5] = y[3];
}

// B' d B of one vector of channels: put(frequency, value) takes the 36 results.
template <class V, class Put>
[[gnu::always_inline]] inline void input_tile(const float* src, int64_t row, int64_t channels,
                                              const Put& put) {
  typename V::Reg half[6][6];  // [column][row after B']
#pragma GCC unroll 6
  for (int j = 0; j < 6; ++j) {
    typename V::Reg x[6];
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) x[i] = V::load(src + i * row + j * channels);
    winograd_bt<V>(x, half[j]);
  }
#pragma GCC unroll 6
  for (int i = 0; i < 6; ++i) {
    const typename V::Reg x[6] = {half[0][i], half[1][i], half[2][i],
                                  half[3][i], half[4][i], half[5][i]};
    typename V::Reg y[6];
    winograd_bt<V>(x, y);
#pragma GCC unroll 6
    for (int j = 0; j < 6; ++j) put(6 * i + j, y[j]);
  }
}

// A g A', the same way.
template <class V, class Put>
[[gnu::always_inline]] inline void grad_tile(const float* src, int64_t row, int64_t channels,
                                             const Put& put) {
  typename V::Reg half[4][6];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    typename V::Reg x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = V::load(src + i * row + j * channels);
    winograd_a<V>(x, half[j]);
  }
#pragma GCC unroll 6
  for (int i = 0; i < 6; ++i) {
    const typename V::Reg x[4] = {half[0][i], half[1][i], half[2][i], half[3][i]};
    typename V::Reg y[6];
    winograd_a<V>(x, y);
#pragma GCC unroll 6
    for (int j = 0; j < 6; ++j) put(6 * i + j, y[j]);
  }
}

template <class V>
void winograd_input(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                    int64_t panel, int64_t rows, float* out, int64_t stride) {
  for (int64_t t = 0; t < n; ++t)
    for (int64_t c = 0; c < channels; c += V::lanes) {
      float* dst = out + c / panel * rows * panel + t * panel + c % panel;
      input_tile<V>(tiles[t] + c, row, channels,
                    [&](int f, typename V::Reg y) { V::store(dst + f * stride, y); });
    }
}

template <class V>
void winograd_grad(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                   int64_t panel, int64_t rows, float* out, int64_t stride) {
  for (int64_t t = 0; t < n; ++t)
    for (int64_t c = 0; c < channels; c += V::lanes) {
      float* dst = out + c / panel * rows * panel + t * panel + c % panel;
      grad_tile<V>(tiles[t] + c, row, channels,
                   [&](int f, typename V::Reg y) { V::store(dst + f * stride, y); });
    }
}

template <class V>
struct WinogradOutput {
  const float* in;
  int64_t stride, n, channels;
  const OutTile* tiles;
  int64_t row;
  Moments* moments;

  template <Storage S>
  void run() const {
    // Copies, for the reason given at for_pixel_blocks().
    const auto [in, stride, n, channels, tiles, row, moments] = *this;
    for (int64_t t = 0; t < n; ++t) {
      const OutTile tile = tiles[t];
      const bool whole = tile.rows == 4 && tile.cols == 4;
      const int64_t count = int64_t{tile.rows} * tile.cols;
      for (int64_t c = 0; c < channels; c += V::lanes) {
        typename V::Reg half[6][4], y[4][4];
        const float* src = in + t * channels + c;
#pragma GCC unroll 6
        for (int j = 0; j < 6; ++j) {
          typename V::Reg m[6];
#pragma GCC unroll 6
          for (int i = 0; i < 6; ++i) m[i] = V::load(src + (6 * i + j) * stride);
          winograd_at<V>(m, half[j]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const typename V::Reg m[6] = {half[0][i], half[1][i], half[2][i],
                                        half[3][i], half[4][i], half[5][i]};
          winograd_at<V>(m, y[i]);
        }
        if (whole) {
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j)
              store_as<V, S>(tile.pixel, i * row + j * channels + c, y[i][j]);
        } else {
          for (int i = 0; i < tile.rows; ++i)
            for (int j = 0; j < tile.cols; ++j)
              store_as<V, S>(tile.pixel, i * row + j * channels + c, y[i][j]);
        }
        if (moments == nullptr) continue;
        typename V::Reg sum = V::zero(), m2 = V::zero();
        if (whole) {
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i)
            sum = V::add(sum, V::add(V::add(y[i][0], y[i][1]), V::add(y[i][2], y[i][3])));
          const typename V::Reg mean = V::mul(sum, V::all(1.0F / 16));
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
              const typename V::Reg d = V::sub(y[i][j], mean);
              m2 = V::fma(d, d, m2);
            }
          merge_moments<V>(mean, m2, count, moments, c);
        } else {
          for (int i = 0; i < tile.rows; ++i)
            for (int j = 0; j < tile.cols; ++j) sum = V::add(sum, y[i][j]);
          const typename V::Reg mean = V::mul(sum, V::all(1.0F / static_cast<float>(count)));
          for (int i = 0; i < tile.rows; ++i)
            for (int j = 0; j < tile.cols; ++j) {
              const typename V::Reg d = V::sub(y[i][j], mean);
              m2 = V::fma(d, d, m2);
            }
          merge_moments<V>(mean, m2, count, moments, c);
        }
      }
      if (moments != nullptr) moments->count += count;
    }
  }
};

template <class V>
void winograd_output(const float* in, int64_t stride, int64_t n, int64_t channels,
                     const OutTile* tiles, int64_t row, Storage storage, Moments* moments) {
  with_storage(storage, WinogradOutput<V>{in, stride, n, channels, tiles, row, moments});
}

}  // namespace ductile::nn::kernels
