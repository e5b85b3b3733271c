#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

// A pass back in two halves, as pipelines make it: to the inputs of operators at once, and to their
// weights when there is time (parallel/stage_executor.h).
namespace ductile::nn {

// While one lives, this thread makes the first half from these gradients of an operator's results.
// The second half will begin with the very same tensors, which nobody changes meanwhile, and then
// the graph is let go. So a node that got one of them may put what both halves need in the place of
// what it had saved for it.
class FirstHalf {
 public:
  // The gradients outlive this object.
  explicit FirstHalf(const std::vector<at::Tensor>& gradients);
  ~FirstHalf();
  FirstHalf(const FirstHalf&) = delete;
  FirstHalf& operator=(const FirstHalf&) = delete;

  // Whether such a half is being made, and `gradient` is one that it began with.
  static bool begins_with(const at::Tensor& gradient);

 private:
  const std::vector<at::Tensor>* before_;
};

}  // namespace ductile::nn
