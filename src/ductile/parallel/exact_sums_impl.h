#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ductile/nn/operators.h"
#include "ductile/parallel/tensor_tree.h"

namespace ductile::parallel {

// What an exact stage (stage_executor.h) sums over its micro-batches, in their order, each of which
// counts as a virtual rank.
class ExactSums {
 public:
  // `wants`: StageExecutor::wants_gradient(). The graph outlives this object.
  ExactSums(const nn::OperatorGraph& graph, const std::vector<bool>& wants);

  // Adds the gradients of the parameters `which` of an operator. An undefined one counts as zeros.
  void add(int op, const std::vector<size_t>& which, const nn::Tensors& found);
  // Adds the values that the operator's buffers have now.
  void add_buffers(int op);

  // The sums of the operator's parameters, in order; undefined where no gradient came, and of
  // parameters that several operators hold, whose parts are added for each micro-batch first.
  // Throws conflict unless the gradients of `num_micro_batches`, or of none, came.
  nn::Tensors weights(int op, int64_t num_micro_batches) const;
  // The gradients of such a parameter by micro-batch; empty where none came.
  nn::Tensors parts(int op, size_t parameter) const;
  // The sums of its buffers, in order.
  nn::Tensors buffers(int op) const;
  void clear();

 private:
  struct OfParameter {
    TensorTree sum;
    nn::Tensors parts;  // by micro-batch, of one that is shared
  };

  const nn::OperatorGraph& graph_;
  std::set<std::string> shared_;  // by several operators
  std::map<int, std::vector<OfParameter>> parameters_;
  std::map<int, std::vector<TensorTree>> buffers_;
};

}  // namespace ductile::parallel
