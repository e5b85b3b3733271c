#pragma once

#include <array>
#include <cstdint>

namespace ductile::data {

// The order of one epoch: a pseudo-random permutation of [0, size) that is computed place by place,
// so that a run may start, or be continued, anywhere at no cost, and every rank finds its own
// samples without a list. It depends on (seed, epoch, size) only.
//
// A Feistel network on the smallest power of two >= size, its round keys drawn by Philox, with
// cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002,
// section 3): a result outside [0, size) is encrypted again.
class Permutation {
 public:
  Permutation(uint64_t seed, uint64_t epoch, int64_t size);  // size >= 1

  // The sample at `position` in [0, size).
  int64_t operator[](int64_t position) const;
  int64_t size() const { return size_; }

 private:
  static constexpr int kRounds = 6;
  int64_t size_;
  int low_bits_, high_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace ductile::data
