#pragma once

#include "ductile/nn/operators.h"
#include "ductile/parallel/pipeline.h"

namespace ductile::parallel {

// An exact pipeline (Pipeline::exact) has the bits of autograd over the whole model on each
// micro-batch, with what the micro-batches come to summed as over virtual ranks. Throws
// invalid_argument, which names the operators, where its stages cannot have them:
//
// - autograd adds the gradients of a tensor one by one, from the last that reads it on. A stage
//   adds those of its own operators first, which is the same for two of them, and for a stage whose
//   operators are the last readers;
// - the same of a parameter of several operators, one of which uses it more than once.
//
// How often an operator uses a tensor is seen in its autograd graph, by one pass over a micro-batch
// of `inputs`, which leaves the model's buffers as they were.
void check_exact(const Pipeline& pipeline, const nn::OperatorGraph& operators,
                 const nn::Tensors& inputs);

}  // namespace ductile::parallel
