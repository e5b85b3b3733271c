#pragma once

#include <immintrin.h>
#include <stdint.h>

// Eight fp32 lanes of AVX2 with FMA and F16C, as the template argument of the *_impl.h kernels.
namespace ductile::nn::kernels {

struct Avx2 {
  using Reg = __m256;
  static constexpr int lanes = 8;
  static constexpr int gemm_rows = 6;  // 6 x 2 accumulators, 2 operands and a broadcast: 15 of 16

  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg all(float x) { return _mm256_set1_ps(x); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }  // b where one is not a number
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg round(Reg x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // x * 2^n for a whole n, where x and the result are normal numbers.
  static Reg times_power_of_two(Reg x, Reg n) {
    const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shift));
  }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
  static Reg fnma(Reg a, Reg b, Reg c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
  // x where gate > 0, else 0.
  static Reg where_positive(Reg gate, Reg x) {
    return _mm256_and_ps(_mm256_cmp_ps(gate, zero(), _CMP_GT_OQ), x);
  }
  // max(x, 0), and NaN stays NaN.
  static Reg relu(Reg x) { return _mm256_max_ps(zero(), x); }

  // Whether x is larger than best, or not a number: then `yes`, else `no`.
  static Reg if_larger(Reg x, Reg best, Reg yes, Reg no) {
    const Reg larger = _mm256_cmp_ps(x, best, _CMP_GT_OQ), nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(no, yes, _mm256_or_ps(larger, nan));
  }
  static Reg where_equal(Reg a, Reg b, Reg x) {
    return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), x);
  }
  static Reg load_bytes(const uint8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static void store_bytes(uint8_t* p, Reg x) {
    const __m256i word = _mm256_cvtps_epi32(x);
    const __m128i half =
        _mm_packus_epi32(_mm256_castsi256_si128(word), _mm256_extracti128_si256(word, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(half, half));
  }

  static Reg load_bf16(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  // Round to nearest even; NaN becomes the quiet NaN 0x7fc0.
  static void store_bf16(uint16_t* p, Reg x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i word = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(word), _mm256_extracti128_si256(word, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  static Reg load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store_f16(uint16_t* p, Reg x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

}  // namespace ductile::nn::kernels
