#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "ductile/parallel/exchange.h"
#include "ductile/parallel/pipeline.h"

namespace ductile::parallel {

// Lends a worker's receive memory to the tensors that others send it, a block each. A block that no
// tensor refers to any more is lent again to one of the same size, so memory is taken up only as
// far as tensors were there at a time.
//
// Any thread; tensors may outlive this object and the exchange whose memory it is.
class MessageMemory {
 public:
  explicit MessageMemory(ReceiveMemory memory);

  // A tensor of this form, whose values are unspecified; an undefined one where no room is left. It
  // is counted as what libtorch's allocator gives out is (AllocationCount).
  at::Tensor tensor(const TensorForm& form);

  size_t lent() const;      // bytes of the blocks that tensors refer to
  size_t taken_up() const;  // bytes of all blocks that were ever lent
  int64_t refused() const;  // tensors for which no room was left

 private:
  struct Blocks;
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace ductile::parallel
