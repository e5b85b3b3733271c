#include "ductile/parallel/spatial_split.h"

#include <ATen/ops/empty.h>

#include "ductile/base/error.h"

namespace ductile::parallel {

CommunicatorSplit::CommunicatorSplit(comm::Communicator& communicator, int rows, int cols,
                                     uint32_t tag)
    : SpatialSplit(rows, cols, communicator.rank()), communicator_(communicator), tag_(tag) {
  if (rows * cols != communicator.size()) {
    fail(ErrorCode::invalid_argument, "a grid of {}x{} cells over {} workers; it needs {}", rows,
         cols, communicator.size(), rows * cols);
  }
}

void CommunicatorSplit::all_reduce(std::span<double> values) {
  communicator_.all_reduce(values.data(), values.data(), static_cast<int64_t>(values.size()),
                           DType::f64);
}

void CommunicatorSplit::exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                                 const std::function<void()>& meanwhile) {
  std::vector<comm::Work> work;
  for (const Incoming& m : in) work.push_back(communicator_.start_receive(m.cell, tag_, m.bytes));
  for (const Outgoing& m : out) {
    work.push_back(communicator_.start_send(m.cell, tag_, m.bytes));
    bytes_sent_ += m.bytes.size();
  }
  try {
    meanwhile();
  } catch (...) {
    // The messages' memory is the caller's: nothing may be under way when it goes.
    for (const comm::Work& w : work) {
      try {
        w.wait();
      } catch (const Error&) {
      }
    }
    throw;
  }
  std::exception_ptr lost;
  for (const comm::Work& w : work) {
    try {
      w.wait();
    } catch (...) {
      lost = std::current_exception();
    }
  }
  if (lost) std::rethrow_exception(lost);
}

void sum_gradients(comm::Communicator& communicator, std::span<const at::Tensor> gradients) {
  if (gradients.empty() || communicator.size() == 1) return;
  int64_t count = 0;
  for (const at::Tensor& g : gradients) count += g.numel();
  const at::Tensor flat = at::empty({count}, gradients[0].options());
  const auto type = flat.scalar_type() == at::kDouble ? DType::f64 : DType::f32;
  if (type == DType::f32 && flat.scalar_type() != at::kFloat) {
    fail(ErrorCode::invalid_argument, "gradients are summed in float or double, not in {}",
         c10::toString(flat.scalar_type()));
  }
  int64_t at = 0;
  for (const at::Tensor& g : gradients) {
    flat.narrow(0, at, g.numel()).copy_(g.reshape({-1}));
    at += g.numel();
  }
  communicator.all_reduce(flat.data_ptr(), flat.data_ptr(), count, type);
  at = 0;
  for (const at::Tensor& g : gradients) {
    g.copy_(flat.narrow(0, at, g.numel()).view_as(g));
    at += g.numel();
  }
}

}  // namespace ductile::parallel
