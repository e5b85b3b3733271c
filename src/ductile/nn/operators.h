#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/nn/model.h"

// A model as a graph of named operators: what the profiler measures, the planner cuts, and the
// pipeline runs piece by piece.
namespace ductile::nn {

using Tensors = std::vector<at::Tensor>;

// Where a tensor comes from: output `output` of operator number `op`, or, if op is kModelInput,
// input number `output` of the model.
struct Source {
  int op = 0;
  int output = 0;

  auto operator<=>(const Source&) const = default;
};
inline constexpr int kModelInput = -1;

// How the work of an operator is divided by columns: indices of the last dimension of its one
// output. What a column comes to depends on no other one, bits included.
struct Columns {
  // Of each parameter: the dimension whose indices are columns, or -1 if every column reads all.
  std::vector<int> dims;
  // The columns from `begin` on, as many as the parameters have, which are given in order and cut
  // along their dims. With whole parameters and begin = 0 it is the operator's run(). Empty: the
  // operator cannot be divided.
  std::function<at::Tensor(std::span<const at::Tensor> inputs,
                           std::span<const at::Tensor> parameters, int64_t begin)>
      run;
};

struct Operator {
  std::string name;  // unique; of an operator with weights, the prefix of the first one's name
  std::string kind;  // "linear", "conv_bn", "attention" ...
  std::vector<Source> inputs;
  int num_outputs = 1;
  // Handles on the model's tensors. An operator alone writes its buffers; a parameter may belong to
  // several operators (tied weights).
  std::vector<NamedTensor> parameters, buffers;
  bool random = false;  // draws from libtorch's generator in training mode
  // Takes the inputs in order, returns num_outputs tensors. It reads no tensor of the model but its
  // own, and neither changes its inputs nor keeps them beyond what autograd saves.
  std::function<Tensors(std::span<const at::Tensor>)> run;
  Columns columns;
};

// Operators in an order in which each follows those that it reads. Not to be changed once it runs.
class OperatorGraph {
 public:
  using Run = std::function<Tensors(std::span<const at::Tensor>)>;

  // Appends an operator and returns its number. Throws conflict if the name is taken,
  // invalid_argument for an input that no earlier operator makes.
  int add(Operator op);
  // The first `count` operators of another graph, with their shortcuts, for one that has none yet.
  void add_first_of(const OperatorGraph& other, size_t count);
  // Another way to run operator `op` and the one behind it: from the inputs of the first to the
  // outputs of the second, with the same bits. It is gone where the second one reads what the first
  // one makes and nothing else, and nobody else reads that: by the interpreter, and by whoever runs
  // both operators (StageExecutor).
  void add_shortcut(int op, Run run);
  // What run() returns.
  void set_results(std::vector<Source> results);

  const std::vector<Operator>& operators() const { return operators_; }
  const std::vector<Source>& results() const { return results_; }
  int num_inputs() const { return num_inputs_; }  // of the model, as far as operators read them
  // That from operator `op`, behind set_results(); nullptr where there is none, or none to be gone.
  const Run* shortcut(int op) const;
  // Throws not_found.
  int find(const std::string& name) const;

  // The interpreter: runs all operators in order, or shortcuts, and frees each tensor behind its
  // last reader.
  Tensors run(std::span<const at::Tensor> inputs) const;

 private:
  void check(const Source& source, const std::string& reader) const;
  bool leads_to_next(int op) const;

  std::vector<Operator> operators_;
  std::vector<Source> results_;
  int num_inputs_ = 0;
  // For each operator, whether it is the last reader of the tensor at each of its inputs.
  std::vector<std::vector<bool>> last_;
  std::vector<std::vector<Source>> unread_;  // what nobody reads, by the operator that makes it
  std::map<int, Run> shortcuts_;             // from operators
};

// A model that says of which operators it is made. Its forward is the interpreter over them.
class DeclaresOperators {
 public:
  virtual ~DeclaresOperators();
  virtual const OperatorGraph& operators() const = 0;
};

// What the model gives for its inputs in order; for a single one Model::forward. Throws
// invalid_argument where several are given and the model declares no operators, or reads more.
at::Tensor forward(Model& model, std::span<const at::Tensor> inputs);

// The operators of a model: those that it declares, or else one of kind "opaque" named "model",
// which is the whole of it. The model outlives the result.
OperatorGraph operators_of(Model& model);

// The name of the operator that training_operators() adds.
inline constexpr const char* kLossOperator = "loss";

// The same with the loss as the last operator: it reads the logits and, as a further input of the
// model, the labels; its outputs are losses [B], the number of correct predictions and that of
// predictions (scalars, int64).
OperatorGraph training_operators(Model& model, double label_smoothing);

}  // namespace ductile::nn
