#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ductile/base/rng.h"
#include "ductile/nn/kernels/isa.h"

// Random operands and comparisons shared by the kernels' tests.
namespace ductile::nn::kernels {

inline std::vector<float> normals(uint64_t stream, int64_t n) {
  Rng rng(2024, stream);
  std::vector<float> v(n);
  for (float& x : v) x = rng.normal();
  return v;
}

inline std::vector<char> stored(const std::vector<float>& v, Storage storage) {
  std::vector<char> bytes(v.size() * bytes_of(storage));
  isa_for(8)->from_float(v.data(), bytes.data(), storage, static_cast<int64_t>(v.size()));
  return bytes;
}

inline std::vector<float> read(const std::vector<char>& bytes, Storage storage) {
  std::vector<float> v(bytes.size() / bytes_of(storage));
  isa_for(8)->to_float(bytes.data(), storage, v.data(), static_cast<int64_t>(v.size()));
  return v;
}

inline std::vector<float> rounded(const std::vector<float>& v, Storage storage) {
  return read(stored(v, storage), storage);
}

// Largest difference, as a share of the largest value expected.
inline double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, largest = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    error = std::max(error, std::abs(got[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
    if (std::isnan(got[i])) return HUGE_VAL;
  }
  return error / largest;
}

}  // namespace ductile::nn::kernels
