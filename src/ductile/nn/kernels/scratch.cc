#include "ductile/nn/kernels/scratch.h"

#include <memory>
#include <new>

namespace ductile::nn::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};

struct Free {
  void operator()(float* p) const { ::operator delete[](p, kAlignment); }
};

struct Block {
  std::unique_ptr<float[], Free> data;
  int64_t floats = 0;
};

}  // namespace

float* scratch(ScratchKind kind, int64_t floats) {
  thread_local Block blocks[2];
  Block& block = blocks[static_cast<int>(kind)];
  if (block.floats < floats) {
    block.data.reset();
    block.data.reset(static_cast<float*>(
        ::operator new[](static_cast<size_t>(floats) * sizeof(float), kAlignment)));
    block.floats = floats;
  }
  return block.data.get();
}

}  // namespace ductile::nn::kernels
