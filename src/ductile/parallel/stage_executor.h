#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "ductile/nn/operators.h"

namespace ductile::parallel {

class ExactSums;  // exact_sums_impl.h
struct Draws;     // draws.h

struct StageExecutorOptions {
  // Whether backward() leaves matrices to backward_weights(). Weights that are cheap to sum (norms,
  // biases) belong to backward() in any case, and all weights of an operator none of whose inputs
  // wants a gradient to backward_weights().
  bool split = false;
  // Each micro-batch counts as a virtual rank of data-parallel training, see StageExecutor.
  bool exact = false;
  std::vector<int> recompute;  // operators that keep their inputs alone and run once more
};

// Of the sums of gradients of this type: in half precision a sum of many parts grows no further, so
// these add up in float32, as the gradients of virtual ranks do.
at::ScalarType sum_type(at::ScalarType type);

// Runs the operators of one pipeline stage on micro-batches: forward, backward to the inputs,
// backward to the weights, each operator by itself. Each reads detached tensors, so no autograd
// graph is larger than an operator, and the tensors between operators can come from elsewhere. Two
// that the model can do at once (OperatorGraph::add_shortcut) count as one where the stage has both
// and recomputes both or none; the second one then has no tensors of its own and draws nothing.
// Nothing here decides an order: the caller calls forward(m) for each micro-batch m, then
// backward(m), then backward_weights(m).
//
// Bits: those of autograd over the whole model on each micro-batch, the weights' gradients added in
// the order of the backward calls. A tensor with several readers gets the sum of their gradients in
// falling order of operators; what comes from other stages stands where its last reader stands. Two
// addends commute, so a cut can change bits only where it parts three or more readers.
// An operator that draws random numbers is seeded by (seed, micro-batch, operator).
//
// An exact executor sums what the micro-batches come to, gradients and buffers, in the order of the
// canonical tree over virtual ranks (gradient_tree.h), which takes memory for log2 of their number,
// plus one, gradients. Each micro-batch runs with the buffers as they are before the first one, and
// the model keeps those; operators draw what they would draw one after the other in a virtual rank,
// which is seeded by (seed, rank). Micro-batches go backward in rising order.
//
// One thread uses an executor at a time; executors of one model may run in several threads, if each
// operator is in one of them.
class StageExecutor {
 public:
  using Source = nn::Source;
  using Tensors = nn::Tensors;

  // `ops`: numbers in the graph, which outlives this object. Throws invalid_argument for a number
  // that is not there, is there twice, or is to be recomputed and is no operator of the stage.
  StageExecutor(const nn::OperatorGraph& graph, std::vector<int> ops, StageExecutorOptions options);
  ~StageExecutor();

  const std::vector<int>& ops() const { return ops_; }
  // The distinct tensors that the stage reads and does not make, and those that it makes and others
  // read (results of the model included), both in rising order.
  const std::vector<Source>& inputs() const { return inputs_; }
  const std::vector<Source>& outputs() const { return outputs_; }
  // By operator: whether gradients of its outputs come, since the first result of the model depends
  // on them, and are of use, since it or those before it have weights. If their type has gradients.
  static std::vector<bool> wants_gradient(const nn::OperatorGraph& graph);
  bool wants_gradient(const Source& source) const;
  // By operator: whether a split backward() leaves some of its weights to backward_weights().
  static std::vector<bool> leaves_weights(const nn::OperatorGraph& graph);

  // The seed of the step for operators that draw random numbers; and, of an exact executor that has
  // such operators, which virtual rank the first micro-batch is, and what all operators draw.
  void set_seed(uint64_t seed, int64_t first_rank = 0, const Draws* draws = nullptr) {
    seed_ = seed;
    first_rank_ = first_rank;
    draws_ = draws;
  }

  // inputs() in order -> outputs() in order. Conflict if the micro-batch is under way already.
  Tensors forward(int64_t micro_batch, Tensors inputs);

  // A gradient of one of outputs(), and the number of the operator after which it was computed:
  // its last reader's. kModelInput for one that is given from outside the model.
  struct Gradient {
    at::Tensor value;
    int reader = 0;
  };
  // Gradients of outputs() in order, any number for each -> gradients of inputs() in order;
  // undefined where wants_gradient() is false or none came.
  std::vector<Gradient> backward(int64_t micro_batch,
                                 std::vector<std::vector<Gradient>> output_gradients);
  // After backward(); without split it has nothing left to do and need not be called.
  void backward_weights(int64_t micro_batch);

  // The sums of the gradients of the operator's parameters, in order, over the micro-batches since
  // the last clear(); undefined where none came. Of an exact executor they are also undefined for
  // parameters that several operators hold, of which weight_parts() has the gradients by
  // micro-batch, since the operators' parts are added first; empty where none came. Throws conflict
  // where an exact executor did not get the gradients of each micro-batch.
  Tensors weight_gradients(int op) const;
  Tensors weight_parts(int op, size_t parameter) const;
  // Of an exact executor: the sums of the operator's buffers, in order, after each micro-batch.
  Tensors buffer_sums(int op) const;
  void clear();
  // Micro-batches of which something is held.
  int64_t num_held() const;

 private:
  // What is run at once: an operator, or it and the one behind it, which makes the outputs then.
  struct Unit {
    int op = 0, last = 0;
    const nn::OperatorGraph::Run* shortcut = nullptr;
  };
  struct Run;         // of one unit on one micro-batch
  struct MicroBatch;  // the runs under way
  const nn::OperatorGraph::Run* shortcut_from(size_t place) const;
  Tensors call(const Unit& unit, int64_t micro_batch, const Tensors& inputs);
  Tensors draw_as_rank(int op, int64_t micro_batch, const Tensors& inputs);
  void run_again(const Unit& unit, int64_t micro_batch, Run& run);
  void differentiate(const Unit& unit, int64_t micro_batch, Run& run, MicroBatch& held);
  void add_weights(int op, const std::vector<size_t>& which, Tensors found);

  const nn::OperatorGraph& graph_;
  std::vector<int> ops_;
  StageExecutorOptions options_;
  std::vector<bool> wants_;  // by operator: its outputs want gradients
  std::vector<bool> recompute_;
  std::vector<Unit> units_;  // of ops_, in their order
  std::vector<Source> inputs_, outputs_;
  uint64_t seed_ = 0;
  int64_t first_rank_ = 0;
  const Draws* draws_ = nullptr;
  std::map<int64_t, MicroBatch> held_;
  int64_t num_done_ = 0;              // micro-batches since clear()
  std::map<int, Tensors> weights_;    // unless exact
  std::unique_ptr<ExactSums> exact_;  // nullptr unless exact
};

}  // namespace ductile::parallel
