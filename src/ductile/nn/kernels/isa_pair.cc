// Compiled with -mavx2 -mfma -mf16c. Two AVX2 registers played as one of sixteen lanes: exercises
// everything of the 16-lane kernels but the AVX-512 instructions themselves.
#include "ductile/nn/kernels/bf16_impl.h"
#include "ductile/nn/kernels/isa_impl.h"
#include "ductile/nn/kernels/simd_avx2_impl.h"

namespace ductile::nn::kernels {

struct Avx2Pair {
  struct Reg {
    Avx2::Reg lo, hi;
  };
  static constexpr int lanes = 16;
  static constexpr int gemm_rows = 12;

  static Reg zero() { return {Avx2::zero(), Avx2::zero()}; }
  static Reg all(float x) { return {Avx2::all(x), Avx2::all(x)}; }
  static Reg load(const float* p) { return {Avx2::load(p), Avx2::load(p + 8)}; }
  static void store(float* p, Reg x) {
    Avx2::store(p, x.lo);
    Avx2::store(p + 8, x.hi);
  }
  static Reg add(Reg a, Reg b) { return {Avx2::add(a.lo, b.lo), Avx2::add(a.hi, b.hi)}; }
  static Reg sub(Reg a, Reg b) { return {Avx2::sub(a.lo, b.lo), Avx2::sub(a.hi, b.hi)}; }
  static Reg mul(Reg a, Reg b) { return {Avx2::mul(a.lo, b.lo), Avx2::mul(a.hi, b.hi)}; }
  static Reg div(Reg a, Reg b) { return {Avx2::div(a.lo, b.lo), Avx2::div(a.hi, b.hi)}; }
  static Reg min(Reg a, Reg b) { return {Avx2::min(a.lo, b.lo), Avx2::min(a.hi, b.hi)}; }
  static Reg max(Reg a, Reg b) { return {Avx2::max(a.lo, b.lo), Avx2::max(a.hi, b.hi)}; }
  static Reg round(Reg x) { return {Avx2::round(x.lo), Avx2::round(x.hi)}; }
  static Reg times_power_of_two(Reg x, Reg n) {
    return {Avx2::times_power_of_two(x.lo, n.lo), Avx2::times_power_of_two(x.hi, n.hi)};
  }
  static Reg fma(Reg a, Reg b, Reg c) {
    return {Avx2::fma(a.lo, b.lo, c.lo), Avx2::fma(a.hi, b.hi, c.hi)};
  }
  static Reg fnma(Reg a, Reg b, Reg c) {
    return {Avx2::fnma(a.lo, b.lo, c.lo), Avx2::fnma(a.hi, b.hi, c.hi)};
  }
  static Reg where_positive(Reg gate, Reg x) {
    return {Avx2::where_positive(gate.lo, x.lo), Avx2::where_positive(gate.hi, x.hi)};
  }
  static Reg relu(Reg x) { return {Avx2::relu(x.lo), Avx2::relu(x.hi)}; }
  static Reg if_larger(Reg x, Reg best, Reg yes, Reg no) {
    return {Avx2::if_larger(x.lo, best.lo, yes.lo, no.lo),
            Avx2::if_larger(x.hi, best.hi, yes.hi, no.hi)};
  }
  static Reg where_equal(Reg a, Reg b, Reg x) {
    return {Avx2::where_equal(a.lo, b.lo, x.lo), Avx2::where_equal(a.hi, b.hi, x.hi)};
  }
  static Reg load_bytes(const uint8_t* p) { return {Avx2::load_bytes(p), Avx2::load_bytes(p + 8)}; }
  static void store_bytes(uint8_t* p, Reg x) {
    Avx2::store_bytes(p, x.lo);
    Avx2::store_bytes(p + 8, x.hi);
  }
  static Reg load_bf16(const uint16_t* p) { return {Avx2::load_bf16(p), Avx2::load_bf16(p + 8)}; }
  static void store_bf16(uint16_t* p, Reg x) {
    Avx2::store_bf16(p, x.lo);
    Avx2::store_bf16(p + 8, x.hi);
  }
  static Reg load_f16(const uint16_t* p) { return {Avx2::load_f16(p), Avx2::load_f16(p + 8)}; }
  static void store_f16(uint16_t* p, Reg x) {
    Avx2::store_f16(p, x.lo);
    Avx2::store_f16(p + 8, x.hi);
  }

  // What processors with bf16 products do in one instruction, but for values below 2^-126.
  static Reg pair(Reg first, Reg second) {
    const Reg a = rounded(first), b = rounded(second);
    const auto join = [](__m256 low, __m256 high) {
      const __m256i shifted = _mm256_srli_epi32(_mm256_castps_si256(low), 16);
      return _mm256_castsi256_ps(_mm256_or_si256(shifted, _mm256_castps_si256(high)));
    };
    return {join(a.lo, b.lo), join(a.hi, b.hi)};
  }
  static void put_bf16(uint16_t* p, Reg x) { store_bf16(p, x); }
  static Reg add_pairs(Reg a, Reg b, Reg c) {
    return fma(first_of(a), first_of(b), fma(second_of(a), second_of(b), c));
  }

 private:
  static Reg rounded(Reg x) {
    uint16_t words[lanes];
    store_bf16(words, x);
    return load_bf16(words);
  }
  static Reg first_of(Reg pairs) {
    const auto low = [](__m256 x) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16));
    };
    return {low(pairs.lo), low(pairs.hi)};
  }
  static Reg second_of(Reg pairs) {
    const auto high = [](__m256 x) {
      return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(-65536)));
    };
    return {high(pairs.lo), high(pairs.hi)};
  }
};

extern const Isa kAvx2PairIsa;
const Isa kAvx2PairIsa = make_isa<Avx2Pair>("avx2 pair");
extern const Bf16Isa kBf16PairIsa;
const Bf16Isa kBf16PairIsa = make_bf16_isa<Avx2Pair>("bf16 on avx2");

}  // namespace ductile::nn::kernels
