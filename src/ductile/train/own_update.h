#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/optim/optimizer.h"
#include "ductile/train/state.h"

namespace ductile::train {

// An update rule that a task brings, such as an optimiser of torch.optim with its schedule of
// learning rates (optimizer.name = "python"). Every worker runs it, with the same gradient, so it
// is a function of its state, the weights, the gradient and the number of updates done. Its state
// lies in a part of the job's (kOwnUpdatePart), so it is saved, sent and hashed as others are.
class OwnUpdate {
 public:
  virtual ~OwnUpdate() = default;

  // One update of the model's weights, in place; one gradient a parameter of the model, in order.
  virtual void step(std::span<const at::Tensor> gradients, int64_t updates) = 0;
  // The learning rate of the last update, for the metrics.
  virtual double lr() const = 0;

  // Writes the state into `part`, whose arrays are the memory of the rule's tensors from then on.
  virtual void keep(ExtraPart& part) = 0;
  // Goes on from the state in `part`; nullptr: the first one. It costs next to nothing where that
  // is what the rule has.
  virtual void take(const ExtraPart* part) = 0;
};

inline constexpr const char* kOwnUpdatePart = "python_optimizer";

// The same as an optimiser: it scales the gradient, and keeps the moving average of the weights.
std::unique_ptr<optim::Optimizer> make_own_optimizer(OwnUpdate& update, nn::Model& model,
                                                     const optim::ParamLayout& layout);

}  // namespace ductile::train
