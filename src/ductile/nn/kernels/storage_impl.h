#pragma once

#include "ductile/nn/kernels/isa.h"

// Loads and stores of one vector in each storage type, and whole runs of them.
namespace ductile::nn::kernels {

template <class V, Storage S>
typename V::Reg load_as(const void* base, int64_t i) {
  if constexpr (S == Storage::f32) return V::load(static_cast<const float*>(base) + i);
  if constexpr (S == Storage::bf16) return V::load_bf16(static_cast<const uint16_t*>(base) + i);
  if constexpr (S == Storage::f16) return V::load_f16(static_cast<const uint16_t*>(base) + i);
}

template <class V, Storage S>
void store_as(void* base, int64_t i, typename V::Reg x) {
  if constexpr (S == Storage::f32) V::store(static_cast<float*>(base) + i, x);
  if constexpr (S == Storage::bf16) V::store_bf16(static_cast<uint16_t*>(base) + i, x);
  if constexpr (S == Storage::f16) V::store_f16(static_cast<uint16_t*>(base) + i, x);
}

// Calls f.template run<S>() with the storage type as a constant.
template <class F>
void with_storage(Storage s, const F& f) {
  if (s == Storage::f32) f.template run<Storage::f32>();
  if (s == Storage::bf16) f.template run<Storage::bf16>();
  if (s == Storage::f16) f.template run<Storage::f16>();
}

template <class V>
struct ToFloat {
  const void* src;
  float* dst;
  int64_t n;

  template <Storage S>
  void run() const {
    const auto [from, to, size] = *this;  // copies, which no store to `to` can change
    int64_t i = 0;
    for (; i + V::lanes <= size; i += V::lanes) V::store(to + i, load_as<V, S>(from, i));
    if (i == size) return;
    char in[4 * V::lanes] = {};
    float out[V::lanes];
    __builtin_memcpy(in, static_cast<const char*>(from) + i * bytes_of(S),
                     (size - i) * bytes_of(S));
    V::store(out, load_as<V, S>(in, 0));
    __builtin_memcpy(to + i, out, (size - i) * sizeof(float));
  }
};

template <class V>
void to_float(const void* src, Storage storage, float* dst, int64_t n) {
  with_storage(storage, ToFloat<V>{src, dst, n});
}

template <class V>
struct FromFloat {
  const float* src;
  void* dst;
  int64_t n;

  template <Storage S>
  void run() const {
    const auto [from, to, size] = *this;  // as above
    int64_t i = 0;
    for (; i + V::lanes <= size; i += V::lanes) store_as<V, S>(to, i, V::load(from + i));
    if (i == size) return;
    float in[V::lanes] = {};
    char out[4 * V::lanes];
    __builtin_memcpy(in, from + i, (size - i) * sizeof(float));
    store_as<V, S>(out, 0, V::load(in));
    __builtin_memcpy(static_cast<char*>(to) + i * bytes_of(S), out, (size - i) * bytes_of(S));
  }
};

template <class V>
void from_float(const float* src, void* dst, Storage storage, int64_t n) {
  with_storage(storage, FromFloat<V>{src, dst, n});
}

}  // namespace ductile::nn::kernels
