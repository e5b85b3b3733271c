#include "ductile/comm/reduce_kernels.h"

#include "ductile/base/error.h"
#include "ductile/comm/reduce_scalar_impl.h"

namespace ductile::comm {
namespace {

template <class Format>
void sum_scalar(std::byte* const* outs, size_t num_outs, const std::byte* const* ins,
                size_t num_ins, size_t n, Stores) {
  scalar::sum<Format>(outs, num_outs, ins, num_ins, 0, n);
}

template <class Format>
ReduceKernels::Wire wire_scalar() {
  return {[](std::byte* out, const float* in, size_t n) { scalar::narrow<Format>(out, in, 0, n); },
          [](float* out, const std::byte* in, size_t n) { scalar::widen<Format>(out, in, 0, n); },
          [](float* inout, const std::byte* in, size_t n) {
            scalar::widen_add<Format>(inout, in, 0, n);
          }};
}

const ReduceKernels& best() {
  if (const ReduceKernels* k = avx512_reduce_kernels()) return *k;
  if (const ReduceKernels* k = avx2_reduce_kernels()) return *k;
  return scalar_reduce_kernels();
}

}  // namespace

ReduceKernels::Sum ReduceKernels::sum(DType type) const {
  switch (type) {
    case DType::f32:
      return sum_f32;
    case DType::f64:
      return sum_f64;
    case DType::bf16:
      return sum_bf16;
    case DType::f16:
      return sum_f16;
    case DType::i64:
      return sum_i64;
    default:
      fail(ErrorCode::invalid_argument,
           "cannot sum elements of type {}: use f32, f64, bf16, f16 or i64", to_string(type));
  }
}

const ReduceKernels::Wire& ReduceKernels::wire_format(DType type) const {
  if (type == DType::bf16) return bf16;
  if (type == DType::f16) return f16;
  fail(ErrorCode::invalid_argument, "{} is no wire format: use bf16 or f16", to_string(type));
}

const ReduceKernels& scalar_reduce_kernels() {
  static const ReduceKernels table{"scalar",
                                   sum_scalar<scalar::F32>,
                                   sum_scalar<scalar::F64>,
                                   sum_scalar<scalar::Bf16>,
                                   sum_scalar<scalar::F16>,
                                   sum_scalar<scalar::I64>,
                                   wire_scalar<scalar::Bf16>(),
                                   wire_scalar<scalar::F16>()};
  return table;
}

const ReduceKernels& reduce_kernels() {
  static const ReduceKernels& table = best();
  return table;
}

bool can_sum(DType type) {
  return type == DType::f32 || type == DType::f64 || type == DType::bf16 || type == DType::f16 ||
         type == DType::i64;
}

void add_to(DType type, std::byte* dst, const std::byte* src, size_t n) {
  add(type, dst, dst, src, n);
}

void add(DType type, std::byte* dst, const std::byte* a, const std::byte* b, size_t n) {
  const std::byte* const ins[2] = {a, b};
  reduce_kernels().sum(type)(&dst, 1, ins, 2, n, Stores::cached);
}

void sum(DType type, std::byte* dst, std::span<const std::byte* const> sources, size_t n,
         Stores stores) {
  sum_to_all(type, {&dst, 1}, sources, n, stores);
}

void sum_to_all(DType type, std::span<std::byte* const> dsts,
                std::span<const std::byte* const> sources, size_t n, Stores stores) {
  DUCTILE_CHECK(!sources.empty(), "a sum of no vectors");
  reduce_kernels().sum(type)(dsts.data(), dsts.size(), sources.data(), sources.size(), n, stores);
}

void narrow(DType wire, std::byte* out, const float* in, size_t n) {
  reduce_kernels().wire_format(wire).narrow(out, in, n);
}

void widen(DType wire, float* out, const std::byte* in, size_t n) {
  reduce_kernels().wire_format(wire).widen(out, in, n);
}

void widen_add(DType wire, float* inout, const std::byte* in, size_t n) {
  reduce_kernels().wire_format(wire).widen_add(inout, in, n);
}

}  // namespace ductile::comm
