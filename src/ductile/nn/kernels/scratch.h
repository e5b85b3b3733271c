#pragma once

#include <cstdint>

namespace ductile::nn::kernels {

// Work memory that belongs to the calling thread and is kept between calls, so that a training
// step touches the same warm pages again. Two kinds, because the thread that opens a parallel
// region also works in it: `shared` is handed to the region, `local` is each thread's own.
enum class ScratchKind { shared, local };

// At least `floats` values, 64-byte aligned, contents undefined; valid until this thread asks for
// the same kind again. Freed when the thread ends.
float* scratch(ScratchKind kind, int64_t floats);

// Cuts one block of scratch memory into aligned parts: first add up with size 0, then take.
class ScratchCutter {
 public:
  explicit ScratchCutter(float* base) : next_(base) {}
  float* take(int64_t floats) {
    float* part = next_;
    next_ += rounded(floats);
    return part;
  }
  static int64_t rounded(int64_t floats) { return (floats + 15) / 16 * 16; }

 private:
  float* next_;
};

}  // namespace ductile::nn::kernels
