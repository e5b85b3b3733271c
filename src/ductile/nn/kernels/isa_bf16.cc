// Compiled with -mavx512bw -mavx512vl -mavx512bf16 and the flags of the AVX-512 kernels.
#include "ductile/nn/kernels/bf16_impl.h"
#include "ductile/nn/kernels/simd_avx2_impl.h"
#include "ductile/nn/kernels/simd_avx512_impl.h"

namespace ductile::nn::kernels {
namespace {

// Bits of a vector of pairs as the type that vdpbf16ps takes.
template <class To, class From>
To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  __builtin_memcpy(&out, &x, sizeof(x));
  return out;
}

struct Bf16x16 : Avx512 {
  static Reg pair(Reg first, Reg second) {
    // Word 2 i is value i of the first, word 2 i + 1 that of the second.
    static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                            21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                            11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const auto both = bits_as<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_loadu_si512(kOrder), both));
  }
  static void put_bf16(uint16_t* p, Reg x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits_as<__m256i>(_mm512_cvtneps_pbh(x)));
  }
  static Reg add_pairs(Reg a, Reg b, Reg c) {
    return _mm512_dpbf16_ps(c, bits_as<__m512bh>(a), bits_as<__m512bh>(b));
  }
};

struct Bf16x8 : Avx2 {
  static Reg pair(Reg first, Reg second) {
    static constexpr uint16_t kOrder[16] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
    const auto both = bits_as<__m256i>(_mm256_cvtne2ps_pbh(second, first));
    const auto order = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kOrder));
    return _mm256_castsi256_ps(_mm256_permutexvar_epi16(order, both));
  }
  static void put_bf16(uint16_t* p, Reg x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bits_as<__m128i>(_mm256_cvtneps_pbh(x)));
  }
  static Reg add_pairs(Reg a, Reg b, Reg c) {
    return _mm256_dpbf16_ps(c, bits_as<__m256bh>(a), bits_as<__m256bh>(b));
  }
};

}  // namespace

extern const Bf16Isa kBf16Isa8;
extern const Bf16Isa kBf16Isa16;
const Bf16Isa kBf16Isa8 = make_bf16_isa<Bf16x8>("bf16, 8 lanes");
const Bf16Isa kBf16Isa16 = make_bf16_isa<Bf16x16>("bf16, 16 lanes");

}  // namespace ductile::nn::kernels
