#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/nn/operators.h"
#include "ductile/parallel/pipeline.h"
#include "ductile/parallel/trace.h"

namespace ductile::parallel {

// A pipeline some of whose stages are hosted by several parts, which divide the columns of the
// stage's linear layers among them (nn::Columns). It is a pipeline like any other, of another graph
// of operators:
//
// - Operator X is divided into X/0 to X/(t-1), of which part p has X/p with its slice of the
//   weights. What a part needs whole, it joins by itself from the slices of all; what other stages
//   read, part 0 joins. All that cannot be divided is part 0's.
// - Tensors go from part to part within a task, as between stages. So a part is a chain of stages
//   here, whose operators need nothing of other parts between the first and the last; each does the
//   letters of the stage that it belongs to.
//
// Column p of an operator has the bits that it has undivided, and so has the gradient of its
// weights, if what comes to it has. The gradient of what the parts read in common is a sum over
// parts, each of which has summed over its columns: it is added as that of any tensor of several
// readers is, from the last part on, and so depends on t and on nothing else.
struct TensorSplit {
  // Of a parameter, as an operator of `graph` holds it.
  struct Slice {
    std::string name;  // PARAMETER/p
    at::Tensor whole, tensor;
    int dim = 0;
    int64_t begin = 0;

    int64_t size() const { return tensor.size(dim); }
  };

  nn::OperatorGraph graph;
  Pipeline pipeline;
  std::vector<int> parts;  // of each stage of `pipeline`; those of a stage of the plan are together
  std::vector<int> stages;                           // of each part: the plan's
  std::map<std::string, std::vector<Slice>> slices;  // by parameter

  int num_parts() const { return static_cast<int>(stages.size()); }
  // The part of each operator of `graph`.
  std::vector<int> parts_of_operators() const;
  // Slices are trained if the parameters that they are slices of are. To be called when these
  // change.
  void follow() const;
  // Adds what the stages of `pipeline` did to `to`, as doings of the plan's stages, of which the
  // first part stands for all; its memory is the sum of the most that each of its stages took.
  void add_trace(const Trace& recorded, Trace& to) const;
};

// `degrees`: t of each stage of the pipeline; empty: 1. Where all are 1, graph and pipeline are
// what was given. An operator is divided if it declares how, has at least t columns, and no other
// operator holds the weights that are cut. The model outlives the result. Throws invalid_argument,
// naming the stage, where t > 1 and nothing can be divided.
TensorSplit split_tensors(const nn::OperatorGraph& operators, const Pipeline& pipeline,
                          std::span<const int64_t> degrees);

}  // namespace ductile::parallel
