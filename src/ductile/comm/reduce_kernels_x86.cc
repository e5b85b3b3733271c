#include "ductile/base/isa.h"
#include "ductile/comm/reduce_kernels.h"
#include "ductile/comm/reduce_scalar_impl.h"

#if defined(__x86_64__)

#include <immintrin.h>

// Compiled for the instruction sets by attribute, so that the program starts on any x86-64.
namespace ductile::comm {
namespace {

namespace avx2 {

#define DUCTILE_TARGET __attribute__((target("avx2,f16c")))

struct F32 {
  using Scalar = scalar::F32;
  using Vector = __m256;
  static constexpr size_t kLanes = 8;
  DUCTILE_TARGET static Vector load(const std::byte* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) {
    _mm256_storeu_ps(reinterpret_cast<float*>(p), v);
  }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm256_stream_ps(reinterpret_cast<float*>(p), v);
  }
};

struct F64 {
  using Scalar = scalar::F64;
  using Vector = __m256d;
  static constexpr size_t kLanes = 4;
  DUCTILE_TARGET static Vector load(const std::byte* p) {
    return _mm256_loadu_pd(reinterpret_cast<const double*>(p));
  }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm256_add_pd(a, b); }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) {
    _mm256_storeu_pd(reinterpret_cast<double*>(p), v);
  }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm256_stream_pd(reinterpret_cast<double*>(p), v);
  }
};

struct I64 {
  using Scalar = scalar::I64;
  using Vector = __m256i;
  static constexpr size_t kLanes = 4;
  DUCTILE_TARGET static Vector load(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm256_add_epi64(a, b); }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v);
  }
};

// Eight 16-bit elements, held as eight floats.
struct Bf16 {
  using Scalar = scalar::Bf16;
  using Vector = __m256;
  static constexpr size_t kLanes = 8;
  DUCTILE_TARGET static Vector load(const std::byte* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  DUCTILE_TARGET static __m128i pack(Vector v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m256i packed = _mm256_packus_epi32(result, result);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), pack(v));
  }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), pack(v));
  }
};

struct F16 {
  using Scalar = scalar::F16;
  using Vector = __m256;
  static constexpr size_t kLanes = 8;
  DUCTILE_TARGET static Vector load(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

#include "ductile/comm/reduce_loops_impl.h"

#undef DUCTILE_TARGET

}  // namespace avx2

namespace avx512 {

#define DUCTILE_TARGET __attribute__((target("avx512f,prefer-vector-width=512")))

struct F32 {
  using Scalar = scalar::F32;
  using Vector = __m512;
  static constexpr size_t kLanes = 16;
  DUCTILE_TARGET static Vector load(const std::byte* p) { return _mm512_loadu_ps(p); }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) { _mm512_storeu_ps(p, v); }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm512_stream_ps(reinterpret_cast<float*>(p), v);
  }
};

struct F64 {
  using Scalar = scalar::F64;
  using Vector = __m512d;
  static constexpr size_t kLanes = 8;
  DUCTILE_TARGET static Vector load(const std::byte* p) { return _mm512_loadu_pd(p); }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm512_add_pd(a, b); }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) { _mm512_storeu_pd(p, v); }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm512_stream_pd(reinterpret_cast<double*>(p), v);
  }
};

struct I64 {
  using Scalar = scalar::I64;
  using Vector = __m512i;
  static constexpr size_t kLanes = 8;
  DUCTILE_TARGET static Vector load(const std::byte* p) { return _mm512_loadu_si512(p); }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm512_add_epi64(a, b); }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) { _mm512_storeu_si512(p, v); }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v);
  }
};

// Sixteen 16-bit elements, held as sixteen floats.
struct Bf16 {
  using Scalar = scalar::Bf16;
  using Vector = __m512;
  static constexpr size_t kLanes = 16;
  DUCTILE_TARGET static Vector load(const std::byte* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  DUCTILE_TARGET static __m256i pack(Vector v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
  }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pack(v));
  }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), pack(v));
  }
};

struct F16 {
  using Scalar = scalar::F16;
  using Vector = __m512;
  static constexpr size_t kLanes = 16;
  DUCTILE_TARGET static Vector load(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  DUCTILE_TARGET static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  DUCTILE_TARGET static void store(std::byte* p, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  DUCTILE_TARGET static void stream(std::byte* p, Vector v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

#include "ductile/comm/reduce_loops_impl.h"

#undef DUCTILE_TARGET

}  // namespace avx512
}  // namespace

const ReduceKernels* avx2_reduce_kernels() {
  static const ReduceKernels table = avx2::make_table("avx2");
  return may_use(IsaLevel::avx2) ? &table : nullptr;
}

const ReduceKernels* avx512_reduce_kernels() {
  static const ReduceKernels table = avx512::make_table("avx512");
  return may_use(IsaLevel::avx512) ? &table : nullptr;
}

}  // namespace ductile::comm

#else

namespace ductile::comm {

const ReduceKernels* avx2_reduce_kernels() { return nullptr; }
const ReduceKernels* avx512_reduce_kernels() { return nullptr; }

}  // namespace ductile::comm

#endif
