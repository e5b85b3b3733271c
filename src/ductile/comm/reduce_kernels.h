#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ductile/base/dtype.h"

namespace ductile::comm {

// Sums of vectors, and the conversions of the 16-bit wire formats. Pointers may have any alignment.
// An output is one of the inputs, or overlaps none of them. `n` counts elements. No allocation, no
// state: any thread may call.
//
// Same bits on every instruction set: elements are independent, a sum runs in the given order, and
// f16 and bf16 are added in f32 and rounded to nearest even once, at the end. i64 wraps around.
// Where two NaNs meet, the result is a NaN of unspecified payload.

// How a result is stored: `streaming` goes past the caches. It pays where the outputs exceed the
// last-level cache and are not inputs too (an input's line is in the cache already).
enum class Stores : uint8_t { cached, streaming };

// f32, f64, bf16, f16 and i64 can be summed; the functions below throw invalid_argument for others.
bool can_sum(DType type);

// dst += src
void add_to(DType type, std::byte* dst, const std::byte* src, size_t n);
// dst = a + b
void add(DType type, std::byte* dst, const std::byte* a, const std::byte* b, size_t n);
// dst = ((s0 + s1) + s2) + ...; at least one source.
void sum(DType type, std::byte* dst, std::span<const std::byte* const> sources, size_t n,
         Stores stores = Stores::cached);
// As sum, to every one of `dsts`; each source is read once.
void sum_to_all(DType type, std::span<std::byte* const> dsts,
                std::span<const std::byte* const> sources, size_t n,
                Stores stores = Stores::cached);

// Wire formats, `wire` = bf16 or f16 (nearest even; beyond the range infinity; NaN stays NaN).
void narrow(DType wire, std::byte* out, const float* in, size_t n);
void widen(DType wire, float* out, const std::byte* in, size_t n);
// inout += in, added in f32.
void widen_add(DType wire, float* inout, const std::byte* in, size_t n);

// One table per instruction set; all of the functions above go through the best one.
struct ReduceKernels {
  using Sum = void (*)(std::byte* const* outs, size_t num_outs, const std::byte* const* ins,
                       size_t num_ins, size_t n, Stores stores);
  struct Wire {
    void (*narrow)(std::byte* out, const float* in, size_t n);
    void (*widen)(float* out, const std::byte* in, size_t n);
    void (*widen_add)(float* inout, const std::byte* in, size_t n);
  };
  std::string_view name;  // "scalar", "avx2", "avx512"
  Sum sum_f32, sum_f64, sum_bf16, sum_f16, sum_i64;
  Wire bf16, f16;

  Sum sum(DType type) const;                  // throws invalid_argument
  const Wire& wire_format(DType type) const;  // throws invalid_argument
};

// The best table of this machine.
const ReduceKernels& reduce_kernels();
const ReduceKernels& scalar_reduce_kernels();
// nullptr where the machine (or the compiler's target) has no such instructions.
const ReduceKernels* avx2_reduce_kernels();
const ReduceKernels* avx512_reduce_kernels();

}  // namespace ductile::comm
