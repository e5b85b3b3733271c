// The vector loops, once for each instruction set: the includer defines DUCTILE_TARGET (the
// function attribute) and, in an unnamed namespace, the formats F32, F64, Bf16, F16 and I64 with
//   Scalar: the same format in reduce_scalar_impl.h; Vector: a register of sums;
//   kLanes: elements in it; load, add, store, and stream (which needs kLanes elements' alignment).
// No include guard: it is included inside that namespace.

// Reads a block of every input before it writes that block of any output: outputs may be inputs.
template <class Format, bool kStream, size_t kIns>
DUCTILE_TARGET size_t sum_blocks(std::byte* const* outs, size_t num_outs,
                                 const std::byte* const* ins, size_t num_ins, size_t first,
                                 size_t n) {
  constexpr size_t kSize = sizeof(typename Format::Scalar::Stored);
  constexpr size_t kStep = Format::kLanes * kSize;
  using Vector = typename Format::Vector;
  if (kIns != 0) num_ins = kIns;
  size_t i = first;
  for (; i + 4 * Format::kLanes <= n; i += 4 * Format::kLanes) {
    const size_t at = i * kSize;
    const std::byte* in = ins[0] + at;
    Vector v0 = Format::load(in), v1 = Format::load(in + kStep);
    Vector v2 = Format::load(in + 2 * kStep), v3 = Format::load(in + 3 * kStep);
    for (size_t k = 1; k < num_ins; ++k) {
      in = ins[k] + at;
      v0 = Format::add(v0, Format::load(in));
      v1 = Format::add(v1, Format::load(in + kStep));
      v2 = Format::add(v2, Format::load(in + 2 * kStep));
      v3 = Format::add(v3, Format::load(in + 3 * kStep));
    }
    for (size_t k = 0; k < num_outs; ++k) {
      std::byte* const out = outs[k] + at;
      if constexpr (kStream) {
        Format::stream(out, v0);
        Format::stream(out + kStep, v1);
        Format::stream(out + 2 * kStep, v2);
        Format::stream(out + 3 * kStep, v3);
      } else {
        Format::store(out, v0);
        Format::store(out + kStep, v1);
        Format::store(out + 2 * kStep, v2);
        Format::store(out + 3 * kStep, v3);
      }
    }
  }
  for (; i + Format::kLanes <= n; i += Format::kLanes) {
    const size_t at = i * kSize;
    Vector v = Format::load(ins[0] + at);
    for (size_t k = 1; k < num_ins; ++k) v = Format::add(v, Format::load(ins[k] + at));
    for (size_t k = 0; k < num_outs; ++k) Format::store(outs[k] + at, v);
  }
  return i;
}

template <class Format>
DUCTILE_TARGET void sum_vectors(std::byte* const* outs, size_t num_outs,
                                const std::byte* const* ins, size_t num_ins, size_t n,
                                Stores stores) {
  using Scalar = typename Format::Scalar;
  constexpr size_t kSize = sizeof(typename Scalar::Stored);
  constexpr size_t kAlign = Format::kLanes * kSize;
  size_t first = 0;
  if (stores == Stores::streaming && num_outs > 0 && n >= 8 * Format::kLanes) {
    const size_t offset = reinterpret_cast<uintptr_t>(outs[0]) % kAlign;
    bool aligned = offset % kSize == 0;
    for (size_t k = 1; k < num_outs; ++k) {
      aligned = aligned && reinterpret_cast<uintptr_t>(outs[k]) % kAlign == offset;
    }
    if (aligned) {
      const size_t head = (kAlign - offset) % kAlign / kSize;
      scalar::sum<Scalar>(outs, num_outs, ins, num_ins, 0, head);
      first = sum_blocks<Format, true, 0>(outs, num_outs, ins, num_ins, head, n);
      _mm_sfence();  // streamed stores become visible before whatever the caller stores next
      scalar::sum<Scalar>(outs, num_outs, ins, num_ins, first, n);
      return;
    }
  }
  first = num_ins == 2 ? sum_blocks<Format, false, 2>(outs, num_outs, ins, num_ins, 0, n)
                       : sum_blocks<Format, false, 0>(outs, num_outs, ins, num_ins, 0, n);
  scalar::sum<Scalar>(outs, num_outs, ins, num_ins, first, n);
}

template <class Format>
DUCTILE_TARGET void narrow_vectors(std::byte* out, const float* in, size_t n) {
  size_t i = 0;
  for (; i + Format::kLanes <= n; i += Format::kLanes) {
    Format::store(out + 2 * i, F32::load(reinterpret_cast<const std::byte*>(in + i)));
  }
  scalar::narrow<typename Format::Scalar>(out, in, i, n);
}

template <class Format>
DUCTILE_TARGET void widen_vectors(float* out, const std::byte* in, size_t n) {
  size_t i = 0;
  for (; i + Format::kLanes <= n; i += Format::kLanes) {
    F32::store(reinterpret_cast<std::byte*>(out + i), Format::load(in + 2 * i));
  }
  scalar::widen<typename Format::Scalar>(out, in, i, n);
}

template <class Format>
DUCTILE_TARGET void widen_add_vectors(float* inout, const std::byte* in, size_t n) {
  size_t i = 0;
  for (; i + Format::kLanes <= n; i += Format::kLanes) {
    std::byte* const at = reinterpret_cast<std::byte*>(inout + i);
    F32::store(at, F32::add(F32::load(at), Format::load(in + 2 * i)));
  }
  scalar::widen_add<typename Format::Scalar>(inout, in, i, n);
}

inline ReduceKernels make_table(std::string_view name) {
  return {name,
          sum_vectors<F32>,
          sum_vectors<F64>,
          sum_vectors<Bf16>,
          sum_vectors<F16>,
          sum_vectors<I64>,
          {narrow_vectors<Bf16>, widen_vectors<Bf16>, widen_add_vectors<Bf16>},
          {narrow_vectors<F16>, widen_vectors<F16>, widen_add_vectors<F16>}};
}
