#include "ductile/nn/layers.h"

#include <cmath>

#include "ductile/nn/init.h"
#include "ductile/nn/precision.h"

namespace ductile::nn {

LayerModel::LayerModel(const ModelArgs& args)
    : type_(scalar_type_of(args.precision)), seed_(args.seed) {}

at::Tensor LayerModel::add_parameter(const std::string& name, const at::Tensor& value,
                                     bool frozen) {
  return register_parameter(name, value.to(type_), /*is_norm=*/false, frozen);
}

at::Tensor LayerModel::add_norm_parameter(const std::string& name, const at::Tensor& value,
                                          bool frozen) {
  return register_parameter(name, value.to(norm_type()), /*is_norm=*/true, frozen);
}

at::ScalarType LayerModel::norm_type() const {
  return type_ == at::kDouble ? at::kDouble : at::kFloat;
}

Linear LayerModel::add_linear(const std::string& name, int64_t in, int64_t out) {
  // nn.Linear: kaiming_uniform with a = sqrt(5), which is 1 / sqrt(fan_in), for both.
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  const std::string weight = name + ".weight", bias = name + ".bias";
  Linear layer;
  layer.weight = add_parameter(weight, init_uniform({out, in}, bound, seed_, weight));
  layer.bias = add_parameter(bias, init_uniform({out}, bound, seed_, bias));
  return layer;
}

Conv LayerModel::add_conv(const std::string& name, int64_t in, int64_t out, int64_t kernel) {
  const double bound = 1 / std::sqrt(static_cast<double>(in * kernel * kernel));
  const std::string weight = name + ".weight", bias = name + ".bias";
  Conv layer;
  layer.weight =
      add_parameter(weight, init_uniform({out, in, kernel, kernel}, bound, seed_, weight));
  layer.bias = add_parameter(bias, init_uniform({out}, bound, seed_, bias));
  return layer;
}

ops::BatchNorm LayerModel::add_batch_norm(const std::string& name, int64_t channels,
                                          bool frozen_weight) {
  ops::BatchNorm bn;
  bn.weight = add_norm_parameter(name + ".weight", init_constant({channels}, 1), frozen_weight);
  bn.bias = add_norm_parameter(name + ".bias", init_constant({channels}, 0));
  const auto statistic = [&](const char* which, double value) {
    return register_buffer(name + which, init_constant({channels}, value).to(norm_type()), true);
  };
  bn.running_mean = statistic(".running_mean", 0);
  bn.running_var = statistic(".running_var", 1);
  return bn;
}

ConvBn LayerModel::add_conv_bn(const std::string& conv, const std::string& bn, int64_t in,
                               int64_t out, int64_t kernel, int64_t stride, ConvInit init) {
  const std::string name = conv + ".weight";
  const std::vector<int64_t> shape = {out, in, kernel, kernel};
  const auto window = static_cast<double>(kernel * kernel);
  const at::Tensor weight =
      init == ConvInit::pytorch
          ? init_uniform(shape, 1 / std::sqrt(static_cast<double>(in) * window), seed_, name)
          : init_normal(shape, std::sqrt(2 / (static_cast<double>(out) * window)), seed_, name);
  ConvBn layer;
  layer.weight = add_parameter(name, weight);
  layer.bn = add_batch_norm(bn, out);
  layer.stride = stride;
  layer.padding = kernel / 2;
  return layer;
}

at::Tensor LayerModel::relu(const at::Tensor& x) const { return cast(widened(x).relu()); }

at::Tensor LayerModel::run(const ConvBn& layer, const at::Tensor& x, bool relu,
                           const at::Tensor& residual) const {
  return ops::conv_bn_act(x, layer.weight, layer.stride, layer.padding, layer.bn, residual,
                          relu ? ops::Activation::relu : ops::Activation::none, training());
}

at::Tensor LayerModel::run_pooled(const ConvBn& layer, const at::Tensor& x, bool relu,
                                  int64_t kernel) const {
  return ops::conv_bn_act_pool(x, layer.weight, layer.stride, layer.padding, layer.bn,
                               relu ? ops::Activation::relu : ops::Activation::none, training(),
                               kernel);
}

}  // namespace ductile::nn
