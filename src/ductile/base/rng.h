#pragma once

#include <array>
#include <cstdint>

namespace ductile {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11, section 3.3):
// a pure function from (key, counter) to 128 random bits. No state, so any value of any stream can
// be drawn anywhere, in any order.
std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter);

// Mixes two words into one; use to derive a stream key from (seed, purpose, index ...).
uint64_t mix(uint64_t a, uint64_t b);

// A sequence of draws from one stream: Rng(seed, epoch, sample) gives the same draws on every
// machine and thread. Cheap to construct (no warm-up). Not shared between threads.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0, uint64_t substream = 0);

  uint32_t next();                       // 32 uniform bits
  uint64_t next64();                     // 64 uniform bits
  float uniform();                       // [0, 1), 24 bits
  double uniform(double lo, double hi);  // [lo, hi)
  uint32_t below(uint32_t n);            // [0, n), unbiased; n >= 1
  float normal();                        // mean 0, variance 1 (Box-Muller)

 private:
  uint64_t key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace ductile
