#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/nn/layers.h"
#include "ductile/nn/operators.h"

namespace ductile::nn {

// The base of models that are a graph of operators: the constructor registers layers (layers.h) and
// adds the operators that use them, in order; forward runs them.
class OperatorModel : public LayerModel, public DeclaresOperators {
 public:
  at::Tensor forward(const at::Tensor& x) final;
  const OperatorGraph& operators() const final { return graph_; }

 protected:
  using LayerModel::LayerModel;

  using Inputs = std::span<const at::Tensor>;
  using Run = std::function<at::Tensor(Inputs)>;

  // The (first) input of the model.
  static constexpr Source input(int number = 0) { return {kModelInput, number}; }

  // Adds an operator of one output. `tensors` are the parameters and buffers that `run` reads. A
  // backward pass split into inputs and weights repeats what lies between a weight and the output,
  // so a matrix is best the last costly part of its operator.
  Source add(std::string name, std::string kind, std::vector<Source> inputs,
             std::initializer_list<at::Tensor> tensors, Run run, bool random = false);

  // The same of an operator that can be divided by columns (operators.h). `tensors` are parameters,
  // and `columns` does not capture them.
  Source add_columns(std::string name, std::vector<Source> inputs,
                     std::initializer_list<at::Tensor> tensors, Columns columns,
                     bool random = false);
  // Columns [begin, begin + count) of x; x itself if that is all of them.
  static at::Tensor columns_of(const at::Tensor& x, int64_t begin, int64_t count);

  // relu?(linear(flattened x)), x in the model's precision.
  Source add_dense(std::string name, const Linear& layer, Source x, bool relu);
  // relu?(bn(conv(x))), x in the model's precision.
  Source add_conv_bn_act(std::string name, const ConvBn& layer, Source x, bool relu);
  // relu(bn(conv(x)) + residual)
  Source add_conv_bn_act(std::string name, const ConvBn& layer, Source x, Source residual);
  Source add_max_pool(std::string name, Source x, int64_t kernel, int64_t stride, int64_t padding);

  // To be called once, behind the last add: what forward returns.
  void finish(Source result);

 private:
  Operator declared(std::string name, std::string kind, std::vector<Source> inputs,
                    std::initializer_list<at::Tensor> tensors, bool random);

  OperatorGraph graph_;
  // Operators behind which a pool may be done at once, by windows of kernel x kernel.
  std::map<int, std::function<at::Tensor(Inputs, int64_t kernel)>> poolable_;
};

}  // namespace ductile::nn
