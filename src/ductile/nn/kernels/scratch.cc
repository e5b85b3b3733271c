#include "ductile/nn/kernels/scratch.h"

#include "ductile/base/aligned_array.h"

namespace ductile::nn::kernels {

float* scratch(ScratchKind kind, int64_t floats) {
  thread_local AlignedArray<float> blocks[2];
  AlignedArray<float>& block = blocks[static_cast<int>(kind)];
  block.need(floats);
  return block.data();
}

}  // namespace ductile::nn::kernels
