#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ductile::comm::scalar {

// One element at a time: the twin that every vector kernel must equal, and its tail. A format names
// the stored type, the type sums are held in, and the way between the two.

inline float float_of_bf16(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

inline uint16_t bf16_of_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float float_of_f16(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
  if (exponent == 31) {
    const uint32_t quiet = mantissa ? 0x400000 : 0;
    return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13) | quiet);
  }
  if (exponent == 0) {
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
    return std::bit_cast<float>(sign | bits);
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t f16_of_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  uint32_t result;
  if (magnitude > 0x7f800000) {
    result = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= 0x47800000) {  // 2^16 and above
    result = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // a normal number, or rounds up to infinity
    result = (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
  } else if (magnitude >= 0x33000000) {  // a multiple of 2^-24
    const uint32_t shift = 126 - (magnitude >> 23);
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t half = 1u << (shift - 1), kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    result = kept + (rest > half || (rest == half && (kept & 1)) ? 1 : 0);
  } else {
    result = 0;
  }
  return static_cast<uint16_t>(sign | result);
}

template <class T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static T widen(T v) { return v; }
  static T narrow(T v) { return v; }
  static T add(T a, T b) { return a + b; }
};
struct F32 : Plain<float> {};
struct F64 : Plain<double> {};
struct I64 : Plain<uint64_t> {};
struct Bf16 {
  using Stored = uint16_t;
  using Sum = float;
  static float widen(uint16_t v) { return float_of_bf16(v); }
  static uint16_t narrow(float v) { return bf16_of_float(v); }
  static float add(float a, float b) { return a + b; }
};
struct F16 {
  using Stored = uint16_t;
  using Sum = float;
  static float widen(uint16_t v) { return float_of_f16(v); }
  static uint16_t narrow(float v) { return f16_of_float(v); }
  static float add(float a, float b) { return a + b; }
};

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Elements first .. n - 1.
template <class Format>
void sum(std::byte* const* outs, size_t num_outs, const std::byte* const* ins, size_t num_ins,
         size_t first, size_t n) {
  using Stored = typename Format::Stored;
  for (size_t i = first; i < n; ++i) {
    const size_t at = i * sizeof(Stored);
    auto value = Format::widen(load<Stored>(ins[0] + at));
    for (size_t k = 1; k < num_ins; ++k) {
      value = Format::add(value, Format::widen(load<Stored>(ins[k] + at)));
    }
    const Stored result = Format::narrow(value);
    for (size_t k = 0; k < num_outs; ++k) store(outs[k] + at, result);
  }
}

template <class Format>
void narrow(std::byte* out, const float* in, size_t first, size_t n) {
  for (size_t i = first; i < n; ++i) {
    store(out + 2 * i, Format::narrow(load<float>(reinterpret_cast<const std::byte*>(in + i))));
  }
}
template <class Format>
void widen(float* out, const std::byte* in, size_t first, size_t n) {
  for (size_t i = first; i < n; ++i) {
    store(reinterpret_cast<std::byte*>(out + i), Format::widen(load<uint16_t>(in + 2 * i)));
  }
}
template <class Format>
void widen_add(float* inout, const std::byte* in, size_t first, size_t n) {
  for (size_t i = first; i < n; ++i) {
    std::byte* const at = reinterpret_cast<std::byte*>(inout + i);
    store(at, load<float>(at) + Format::widen(load<uint16_t>(in + 2 * i)));
  }
}

}  // namespace ductile::comm::scalar
