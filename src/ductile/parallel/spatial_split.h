#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/comm/communicator.h"
#include "ductile/nn/spatial.h"

namespace ductile::parallel {

// A spatial split over the ranks of a communicator: rank r is cell r of the grid, row by row. Edges
// travel as messages of the given tag, which nothing else may use; statistics as all-reduces. The
// communicator is borrowed; between a forward pass and the end of its backward pass nothing else
// may run collectives on it.
class CommunicatorSplit : public nn::SpatialSplit {
 public:
  // Throws invalid_argument unless the grid has a cell for each rank.
  CommunicatorSplit(comm::Communicator& communicator, int rows, int cols, uint32_t tag = 0);

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const std::function<void()>& meanwhile) override;

  // Bytes of edges sent so far.
  size_t bytes_sent() const { return bytes_sent_; }

 private:
  void all_reduce(std::span<double> values) override;

  comm::Communicator& communicator_;
  uint32_t tag_;
  size_t bytes_sent_ = 0;
};

// Replaces each gradient by its sum over the ranks, with the same bits on all of them, because a
// backward pass under a split leaves only shares of the gradients. All gradients have one type,
// float or double; every rank passes the same ones in the same order.
void sum_gradients(comm::Communicator& communicator, std::span<const at::Tensor> gradients);

}  // namespace ductile::parallel
