#pragma once

#include <immintrin.h>
#include <stdint.h>

// Sixteen fp32 lanes of AVX-512F, as the template argument of the *_impl.h kernels.
namespace ductile::nn::kernels {

struct Avx512 {
  using Reg = __m512;
  static constexpr int lanes = 16;
  static constexpr int gemm_rows = 12;  // 12 x 2 accumulators, 2 operands: 26 of 32

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg all(float x) { return _mm512_set1_ps(x); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg round(Reg x) { return _mm512_roundscale_ps(x, 0); }
  static Reg times_power_of_two(Reg x, Reg n) { return _mm512_scalef_ps(x, n); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg fnma(Reg a, Reg b, Reg c) { return _mm512_fnmadd_ps(a, b, c); }
  static Reg where_positive(Reg gate, Reg x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(gate, zero(), _CMP_GT_OQ), x);
  }
  static Reg relu(Reg x) { return _mm512_max_ps(zero(), x); }

  static Reg if_larger(Reg x, Reg best, Reg yes, Reg no) {
    const __mmask16 mask = static_cast<__mmask16>(_mm512_cmp_ps_mask(x, best, _CMP_GT_OQ) |
                                                  _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q));
    return _mm512_mask_blend_ps(mask, no, yes);
  }
  static Reg where_equal(Reg a, Reg b, Reg x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), x);
  }
  static Reg load_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static void store_bytes(uint8_t* p, Reg x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
  }

  static Reg load_bf16(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static void store_bf16(uint16_t* p, Reg x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i word = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(word));
  }
  static Reg load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store_f16(uint16_t* p, Reg x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

}  // namespace ductile::nn::kernels
