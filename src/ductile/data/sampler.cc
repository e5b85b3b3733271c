#include "ductile/data/sampler.h"

#include <bit>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::data {
namespace {

constexpr uint64_t kOrderStream = 0x6f72646572;  // "order"

// The finaliser of SplitMix64: every input bit reaches every output bit.
uint64_t scramble(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(uint64_t seed, uint64_t epoch, int64_t size) : size_(size) {
  if (size < 1) fail(ErrorCode::invalid_argument, "a permutation of {} samples", size);
  const int bits = std::max(2, static_cast<int>(std::bit_width(static_cast<uint64_t>(size - 1))));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  Rng rng(seed, kOrderStream, epoch);
  for (uint64_t& key : keys_) key = rng.next64();
}

int64_t Permutation::operator[](int64_t position) const {
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1;
  const uint64_t high_mask = (uint64_t{1} << high_bits_) - 1;
  uint64_t value = static_cast<uint64_t>(position);
  do {
    uint64_t low = value & low_mask, high = value >> low_bits_;
    for (int r = 0; r < kRounds; r += 2) {
      low ^= scramble(high + keys_[r]) & low_mask;
      high ^= scramble(low + keys_[r + 1]) & high_mask;
    }
    value = high << low_bits_ | low;
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace ductile::data
