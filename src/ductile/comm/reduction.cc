#include "ductile/comm/reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "ductile/base/error.h"
#include "ductile/comm/reduce_kernels.h"

namespace ductile::comm {
namespace {

template <class T, class F>
void each(std::byte* dst, const std::byte* a, const std::byte* b, size_t n, F f) {
  for (size_t i = 0; i < n; ++i) {
    T x, y;
    std::memcpy(&x, a + i * sizeof(T), sizeof(T));
    std::memcpy(&y, b + i * sizeof(T), sizeof(T));
    x = f(x, y);
    std::memcpy(dst + i * sizeof(T), &x, sizeof(T));
  }
}

template <class T>
void combine_as(Reduction reduction, std::byte* dst, const std::byte* a, const std::byte* b,
                size_t n) {
  constexpr bool real = std::is_floating_point_v<T>;
  switch (reduction) {
    case Reduction::sum:
      if constexpr (real) {
        return each<T>(dst, a, b, n, [](T x, T y) { return x + y; });
      } else {
        return each<T>(dst, a, b, n, [](T x, T y) {
          return static_cast<T>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
        });
      }
    case Reduction::min:
      return each<T>(dst, a, b, n, [](T x, T y) {
        if constexpr (real) return std::fmin(x, y);
        return std::min(x, y);
      });
    case Reduction::max:
      return each<T>(dst, a, b, n, [](T x, T y) {
        if constexpr (real) return std::fmax(x, y);
        return std::max(x, y);
      });
  }
}

// f16 and bf16: widened to f32 and back, which is exact for a minimum or maximum.
void combine_narrow(Reduction reduction, DType type, std::byte* dst, const std::byte* a,
                    const std::byte* b, size_t n) {
  float x[256];
  float y[256];
  for (size_t at = 0; at < n; at += 256) {
    const size_t m = std::min<size_t>(256, n - at);
    widen(type, x, a + 2 * at, m);
    widen(type, y, b + 2 * at, m);
    auto* x_bytes = reinterpret_cast<std::byte*>(x);
    combine_as<float>(reduction, x_bytes, x_bytes, reinterpret_cast<std::byte*>(y), m);
    narrow(type, dst + 2 * at, x, m);
  }
}

}  // namespace

std::string_view to_string(Reduction r) {
  switch (r) {
    case Reduction::sum:
      return "sum";
    case Reduction::min:
      return "min";
    case Reduction::max:
      return "max";
  }
  return "";
}

void combine(Reduction reduction, DType type, std::byte* dst, const std::byte* a,
             const std::byte* b, size_t n) {
  if (reduction == Reduction::sum && can_sum(type)) return add(type, dst, a, b, n);
  switch (type) {
    case DType::u8:
      return combine_as<uint8_t>(reduction, dst, a, b, n);
    case DType::i8:
      return combine_as<int8_t>(reduction, dst, a, b, n);
    case DType::u16:
      return combine_as<uint16_t>(reduction, dst, a, b, n);
    case DType::i16:
      return combine_as<int16_t>(reduction, dst, a, b, n);
    case DType::u32:
      return combine_as<uint32_t>(reduction, dst, a, b, n);
    case DType::i32:
      return combine_as<int32_t>(reduction, dst, a, b, n);
    case DType::i64:
      return combine_as<int64_t>(reduction, dst, a, b, n);
    case DType::f32:
      return combine_as<float>(reduction, dst, a, b, n);
    case DType::f64:
      return combine_as<double>(reduction, dst, a, b, n);
    case DType::f16:
    case DType::bf16:
      return combine_narrow(reduction, type, dst, a, b, n);
  }
}

}  // namespace ductile::comm
