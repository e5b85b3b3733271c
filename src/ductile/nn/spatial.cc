#include "ductile/nn/spatial.h"

#include <utility>

#include "ductile/base/error.h"
#include "ductile/nn/halo.h"

namespace ductile::nn {
namespace {

thread_local SpatialSplit* current = nullptr;

SpatialSplit* several(SpatialSplit* split) {
  return split != nullptr && split->num_cells() > 1 ? split : nullptr;
}

}  // namespace

Range part_of(int64_t size, int parts, int index) {
  return {size * index / parts, size * (index + 1) / parts};
}

SpatialSplit::SpatialSplit(int rows, int cols, int cell)
    : rows_(rows), cols_(cols), cell_(cell), sizes_(std::make_unique<Sizes>()) {
  if (rows < 1 || cols < 1 || cell < 0 || cell >= rows * cols) {
    fail(ErrorCode::invalid_argument,
         "cell {} of a grid of {}x{}: both sides are at least 1, and cells count from 0", cell,
         rows, cols);
  }
}

SpatialSplit::~SpatialSplit() = default;

SpatialSplit* current_spatial_split() { return current; }

SpatialScope::SpatialScope(SpatialSplit* split)
    : before_(std::exchange(current, several(split))),
      group_(current_batch_group() != nullptr ? current_batch_group() : several(split)) {}

SpatialScope::~SpatialScope() { current = before_; }

}  // namespace ductile::nn
