#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/nn/operators.h"
#include "ductile/parallel/exchange.h"

namespace ductile::train {

// A model's forward pass without gradients, by the workers of an exchange: each runs its operators,
// so it needs the weights of these alone, and sends what others read of them. The worker of rank 0
// has the inputs and gets the output; the others follow it. What it gets has the bits of a pass in
// one worker.
//
// All workers make it alike. One thread.
class StageForward {
 public:
  // `hosts`: the worker of each operator of the model. The exchange outlives this object.
  StageForward(nn::OperatorGraph graph, std::vector<int> hosts, parallel::Exchange& exchange);

  // On rank 0: the first result of the model for these inputs. Then, once, the end.
  at::Tensor forward(const nn::Tensors& inputs);
  void end();
  // On the others: takes part in as many passes as there are until the end.
  void follow();

 private:
  using Tensors = std::map<nn::Source, at::Tensor>;
  at::Tensor pass(const nn::Tensors& inputs);
  void share(const nn::Source& source, int from, Tensors& here);
  void announce(uint64_t passes);

  const nn::OperatorGraph graph_;
  const std::vector<int> hosts_;
  parallel::Exchange& exchange_;
  std::map<nn::Source, std::set<int>> readers_;  // workers
  std::map<nn::Source, size_t> last_;            // operator that reads it
};

}  // namespace ductile::train
