#include "ductile/base/rng.h"

#include <cmath>
#include <numbers>

namespace ductile {

std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> c) {
  constexpr uint64_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMul0 * c[0], p1 = kMul1 * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

uint64_t mix(uint64_t a, uint64_t b) {
  const auto r = philox(a, {static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32), 0, 0});
  return (static_cast<uint64_t>(r[1]) << 32) | r[0];
}

Rng::Rng(uint64_t seed, uint64_t stream, uint64_t substream)
    : key_(mix(seed, stream)),
      counter_{0, 0, static_cast<uint32_t>(substream), static_cast<uint32_t>(substream >> 32)} {}

uint32_t Rng::next() {
  if (used_ == 4) {
    block_ = philox(key_, counter_);
    if (++counter_[0] == 0) ++counter_[1];
    used_ = 0;
  }
  return block_[used_++];
}

uint64_t Rng::next64() {
  const uint64_t low = next();
  return (static_cast<uint64_t>(next()) << 32) | low;
}

float Rng::uniform() { return static_cast<float>(next() >> 8) * 0x1p-24f; }

double Rng::uniform(double lo, double hi) {
  return lo + (hi - lo) * (static_cast<double>(next64() >> 11) * 0x1p-53);
}

uint32_t Rng::below(uint32_t n) {
  // Lemire's multiply-shift with rejection.
  uint64_t m = static_cast<uint64_t>(next()) * n;
  if (static_cast<uint32_t>(m) < n) {
    const uint32_t threshold = -n % n;
    while (static_cast<uint32_t>(m) < threshold) m = static_cast<uint64_t>(next()) * n;
  }
  return static_cast<uint32_t>(m >> 32);
}

float Rng::normal() {
  const double u = 1.0 - uniform(0, 1), v = uniform(0, 1);
  return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
}

}  // namespace ductile
