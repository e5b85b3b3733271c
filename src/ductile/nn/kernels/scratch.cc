#include "ductile/nn/kernels/scratch.h"

#include "ductile/base/aligned_array.h"

namespace ductile::nn::kernels {

float* scratch(ScratchKind kind, int64_t floats) {
  thread_local AlignedArray<float> blocks[2];
  AlignedArray<float>& block = blocks[static_cast<int>(kind)];
  if (block.size() < floats) {
    block = {};  // the old one goes before the new one comes
    block = AlignedArray<float>::uninitialized(floats);
  }
  return block.data();
}

}  // namespace ductile::nn::kernels
