#include "ductile/base/isa.h"
#include "ductile/data/kernels.h"

#if defined(__x86_64__)

#include <algorithm>

#include <immintrin.h>

// Compiled for the instruction sets by attribute, so that the program starts on any x86-64.
#define DUCTILE_AVX2 __attribute__((target("avx2")))
#define DUCTILE_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))

namespace ductile::data {
namespace {

DUCTILE_AVX2 void normalize_avx2(const uint8_t* in, const float* scale, const float* bias,
                                 float* out, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i));
    const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    const __m256 scaled = _mm256_mul_ps(value, _mm256_loadu_ps(scale + i));
    _mm256_storeu_ps(out + i, _mm256_add_ps(scaled, _mm256_loadu_ps(bias + i)));
  }
  for (; i < n; ++i) out[i] = static_cast<float>(in[i]) * scale[i] + bias[i];
}

// Left to the compiler, which makes sixteen lanes of it.
DUCTILE_AVX512 void normalize_avx512(const uint8_t* __restrict in, const float* __restrict scale,
                                     const float* __restrict bias, float* __restrict out,
                                     size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i]) * scale[i] + bias[i];
}

DUCTILE_AVX2 void mirror_avx2(const uint8_t* in, uint8_t* out, int64_t width, int64_t channels) {
  int64_t x = 0;
  if (channels == 3) {
    // Five pixels at a time, loaded with the byte before them; the sixteenth byte written is
    // overwritten by the next step or the tail.
    const __m128i order = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
    for (; x + 6 <= width; x += 5) {
      const __m128i pixels =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 3 * (width - 5 - x) - 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x), _mm_shuffle_epi8(pixels, order));
    }
  } else if (channels == 1) {
    const __m128i order = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (; x + 16 <= width; x += 16) {
      const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + width - 16 - x));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x), _mm_shuffle_epi8(pixels, order));
    }
  }
  for (; x < width; ++x) {
    for (int64_t c = 0; c < channels; ++c) {
      out[x * channels + c] = in[(width - 1 - x) * channels + c];
    }
  }
}

// Four taps a step: bytes of pixels 0 1 in the lower half and 2 3 in the upper, paired by channel
// for the multiply-add of neighbours.
DUCTILE_AVX2 void horizontal_avx2(const uint8_t* in, const int32_t* first, const int16_t* weights,
                                  int quads, int64_t out_width, int16_t* out) {
  const __m256i pair =
      _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,  //
                       8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
  const __m128i half = _mm_set1_epi32(64);
  for (int64_t x = 0; x < out_width; ++x) {
    const uint8_t* pixel = in + 4 * static_cast<int64_t>(first[x]);
    __m256i sum = _mm256_setzero_si256();
    for (int q = 0; q < quads; ++q, weights += 16, pixel += 16) {
      const __m256i four =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pixel)));
      const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(four, pair), w));
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_srai_epi32(_mm_add_epi32(s, half), 7);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 4 * x), _mm_packs_epi32(s, s));
  }
}

// Where the floats go: channel c of pixel x at out_c[c][x * step]; step 1 is planar, otherwise the
// channels of a pixel are neighbours.
struct Target {
  float* const* out_c;
  int64_t step, channels;
};

// Four whole pixels from pixel x on, none of them the row's last.
DUCTILE_AVX2 inline void store4(const Target& t, int64_t x, __m128 p0, __m128 p1, __m128 p2,
                                __m128 p3) {
  if (t.step == 1) {
    _MM_TRANSPOSE4_PS(p0, p1, p2, p3);
    _mm_storeu_ps(t.out_c[0] + x, p0);
    if (t.channels > 1) _mm_storeu_ps(t.out_c[1] + x, p1);
    if (t.channels > 2) _mm_storeu_ps(t.out_c[2] + x, p2);
    if (t.channels > 3) _mm_storeu_ps(t.out_c[3] + x, p3);
    return;
  }
  // Each store reaches into the next pixel, which the following store then sets.
  float* const out = t.out_c[0] + x * t.step;
  _mm_storeu_ps(out, p0);
  _mm_storeu_ps(out + t.step, p1);
  _mm_storeu_ps(out + 2 * t.step, p2);
  _mm_storeu_ps(out + 3 * t.step, p3);
}

DUCTILE_AVX2 void vertical_avx2(const int16_t* const* rows, const int16_t* weights, int taps,
                                int64_t width, const float* scale, const float* bias,
                                int64_t channels, float* const* out_c, int64_t step) {
  alignas(16) float s4[4] = {}, b4[4] = {};
  std::copy_n(scale, channels, s4);
  std::copy_n(bias, channels, b4);
  const __m256 s = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(s4));
  const __m256 b = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(b4));
  const Target target{out_c, step, channels};
  for (int64_t x = 0; x < width; x += 4) {
    __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();  // pixels 0 2, 1 3
    for (int k = 0; k < taps; k += 2) {
      const __m256i r0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k] + 4 * x));
      const bool lone = k + 1 == taps;
      const __m256i r1 =
          lone ? _mm256_setzero_si256()
               : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k + 1] + 4 * x));
      const uint32_t w0 = static_cast<uint16_t>(weights[k]);
      const uint32_t w1 = lone ? 0 : static_cast<uint16_t>(weights[k + 1]);
      const __m256i w = _mm256_set1_epi32(static_cast<int32_t>(w1 << 16 | w0));
      even = _mm256_add_epi32(even, _mm256_madd_epi16(_mm256_unpacklo_epi16(r0, r1), w));
      odd = _mm256_add_epi32(odd, _mm256_madd_epi16(_mm256_unpackhi_epi16(r0, r1), w));
    }
    const __m256 e = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(even), s), b);
    const __m256 o = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(odd), s), b);
    const __m128 pixels[4] = {_mm256_castps256_ps128(e), _mm256_castps256_ps128(o),
                              _mm256_extractf128_ps(e, 1), _mm256_extractf128_ps(o, 1)};
    if (x + 4 < width) {
      store4(target, x, pixels[0], pixels[1], pixels[2], pixels[3]);
      continue;
    }
    for (int64_t i = 0; x + i < width; ++i) {
      alignas(16) float values[4];
      _mm_store_ps(values, pixels[i]);
      for (int64_t c = 0; c < channels; ++c) out_c[c][(x + i) * step] = values[c];
    }
  }
}

}  // namespace

const Kernels* avx2_kernels() {
  static constexpr Kernels table{"avx2", normalize_avx2, mirror_avx2, horizontal_avx2,
                                 vertical_avx2};
  return may_use(IsaLevel::avx2) ? &table : nullptr;
}

const Kernels* avx512_kernels() {
  // The resize is bound by its shuffles and stores, which are a pixel wide: AVX2's serve.
  static constexpr Kernels table{"avx512", normalize_avx512, mirror_avx2, horizontal_avx2,
                                 vertical_avx2};
  return may_use(IsaLevel::avx512) ? &table : nullptr;
}

}  // namespace ductile::data

#else

namespace ductile::data {
const Kernels* avx2_kernels() { return nullptr; }
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace ductile::data

#endif
