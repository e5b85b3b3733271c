#pragma once

#include "ductile/nn/model.h"

namespace ductile::nn {

// A model that declares operators (operators.h) which are those of training alone: dropout draws in
// them, and batch norm counts. In evaluation mode only its forward() runs it. As DeclaresOperators,
// an interface of its own, so that libraries of users' models need not be built again.
class EvaluatesWhole {
 public:
  virtual ~EvaluatesWhole();
};

// Whether the model's operators, one by one, give what its forward() gives in evaluation mode.
bool operators_evaluate(const Model& model);

}  // namespace ductile::nn
