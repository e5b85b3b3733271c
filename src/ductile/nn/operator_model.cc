#include "ductile/nn/operator_model.h"

#include <algorithm>
#include <utility>

#include "ductile/base/error.h"

namespace ductile::nn {

at::Tensor OperatorModel::forward(const at::Tensor& x) {
  return graph_.run(std::span(&x, 1)).front();
}

Operator OperatorModel::declared(std::string name, std::string kind, std::vector<Source> inputs,
                                 std::initializer_list<at::Tensor> tensors, bool random) {
  Operator op;
  op.name = std::move(name);
  op.kind = std::move(kind);
  op.inputs = std::move(inputs);
  op.random = random;
  const std::vector<NamedTensor> parameters = Model::parameters(), buffers = Model::buffers();
  for (const at::Tensor& tensor : tensors) {
    const auto same = [&](const NamedTensor& t) { return t.tensor.is_same(tensor); };
    const auto parameter = std::ranges::find_if(parameters, same);
    const auto buffer = std::ranges::find_if(buffers, same);
    if (parameter != parameters.end()) {
      op.parameters.push_back(*parameter);
    } else {
      DUCTILE_CHECK(buffer != buffers.end(), "operator {} uses a tensor that is not registered",
                    op.name);
      op.buffers.push_back(*buffer);
    }
  }
  return op;
}

Source OperatorModel::add(std::string name, std::string kind, std::vector<Source> inputs,
                          std::initializer_list<at::Tensor> tensors, Run run, bool random) {
  Operator op = declared(std::move(name), std::move(kind), std::move(inputs), tensors, random);
  op.run = [run = std::move(run)](Inputs in) { return Tensors{run(in)}; };
  return {graph_.add(std::move(op)), 0};
}

Source OperatorModel::add_columns(std::string name, std::vector<Source> inputs,
                                  std::initializer_list<at::Tensor> tensors, Columns columns,
                                  bool random) {
  Operator op = declared(std::move(name), "linear", std::move(inputs), tensors, random);
  DUCTILE_CHECK(op.buffers.empty() && op.parameters.size() == columns.dims.size(),
                "operator {} says of {} tensors how they are cut, and has {} parameters", op.name,
                columns.dims.size(), op.parameters.size());
  op.run = [run = columns.run, whole = Tensors(tensors)](Inputs in) {
    return Tensors{run(in, whole, 0)};
  };
  op.columns = std::move(columns);
  return {graph_.add(std::move(op)), 0};
}

at::Tensor OperatorModel::columns_of(const at::Tensor& x, int64_t begin, int64_t count) {
  return begin == 0 && count == x.size(-1) ? x : x.narrow(-1, begin, count);
}

Source OperatorModel::add_dense(std::string name, const Linear& layer, Source x, bool relu) {
  const auto run = [this, relu](Inputs in, Inputs weights, int64_t) {
    const at::Tensor y = ops::linear(cast(in[0]).flatten(1), weights[0], weights[1]);
    return relu ? LayerModel::relu(y) : y;
  };
  return add_columns(std::move(name), {x}, {layer.weight, layer.bias}, {{0, 0}, run});
}

Source OperatorModel::add_conv_bn_act(std::string name, const ConvBn& layer, Source x, bool relu) {
  const ops::BatchNorm& bn = layer.bn;
  const Source made = add(std::move(name), "conv_bn", {x},
                          {layer.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var},
                          [this, layer, relu](Inputs in) { return run(layer, cast(in[0]), relu); });
  poolable_[made.op] = [this, layer, relu](Inputs in, int64_t kernel) {
    return run_pooled(layer, cast(in[0]), relu, kernel);
  };
  return made;
}

Source OperatorModel::add_conv_bn_act(std::string name, const ConvBn& layer, Source x,
                                      Source residual) {
  const ops::BatchNorm& bn = layer.bn;
  return add(std::move(name), "conv_bn", {x, residual},
             {layer.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var},
             [this, layer](Inputs in) { return run(layer, in[0], true, in[1]); });
}

Source OperatorModel::add_max_pool(std::string name, Source x, int64_t kernel, int64_t stride,
                                   int64_t padding) {
  const Source made = add(std::move(name), "pool", {x}, {}, [kernel, stride, padding](Inputs in) {
    return ops::max_pool2d(in[0], kernel, stride, padding);
  });
  const auto before = poolable_.find(x.op);
  if (before != poolable_.end() && stride == kernel && padding == 0) {
    graph_.add_shortcut(
        x.op, [pooled = before->second, kernel](Inputs in) { return Tensors{pooled(in, kernel)}; });
  }
  return made;
}

void OperatorModel::finish(Source result) { graph_.set_results({result}); }

}  // namespace ductile::nn
