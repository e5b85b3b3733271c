#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "ductile/nn/model.h"
#include "ductile/nn/ops.h"

// The base of models made of our operators (the zoo, and users' own): each add_ function registers
// a layer's tensors under PyTorch's names, with PyTorch's or torchvision's initialisation, in the
// precision of the model.
namespace ductile::nn {

struct Linear {
  at::Tensor weight, bias;  // [O, I], [O]
  at::Tensor operator()(const at::Tensor& x) const { return ops::linear(x, weight, bias); }
};

struct Conv {
  at::Tensor weight, bias;  // [O, I, k, k], [O]
};

struct ConvBn {
  at::Tensor weight;  // [O, I, k, k]
  ops::BatchNorm bn;
  int64_t stride, padding;
};

// How a convolution begins: as nn.Conv2d does, or as torchvision's ResNets do (He et al., "Delving
// deep into rectifiers", section 2.2, with the fan of the output).
enum class ConvInit { pytorch, he_fan_out };

class LayerModel : public Model {
 protected:
  // Throws invalid_argument for an unknown precision.
  explicit LayerModel(const ModelArgs& args);

  // NAME.weight and NAME.bias, as nn.Linear.
  Linear add_linear(const std::string& name, int64_t in, int64_t out);
  // NAME.weight and NAME.bias, as nn.Conv2d.
  Conv add_conv(const std::string& name, int64_t in, int64_t out, int64_t kernel);
  // CONV.weight without bias, BN.weight, BN.bias, BN.running_mean, BN.running_var. Padding keeps
  // the size at stride 1.
  ConvBn add_conv_bn(const std::string& conv, const std::string& bn, int64_t in, int64_t out,
                     int64_t kernel, int64_t stride, ConvInit init);
  // NAME.weight, NAME.bias, NAME.running_mean and NAME.running_var, as nn.BatchNorm2d.
  ops::BatchNorm add_batch_norm(const std::string& name, int64_t channels,
                                bool frozen_weight = false);
  // A parameter with the given first values (float), stored in the model's precision.
  at::Tensor add_parameter(const std::string& name, const at::Tensor& value, bool frozen = false);
  // A normalisation layer's parameter: stays float (double in a model of doubles).
  at::Tensor add_norm_parameter(const std::string& name, const at::Tensor& value,
                                bool frozen = false);

  // relu?(bn(conv(x)) + residual?)
  at::Tensor run(const ConvBn& layer, const at::Tensor& x, bool relu,
                 const at::Tensor& residual = {}) const;

  // max_pool(relu?(bn(conv(x)))) of windows that do not overlap, kernel x kernel.
  at::Tensor run_pooled(const ConvBn& layer, const at::Tensor& x, bool relu, int64_t kernel) const;

  at::Tensor relu(const at::Tensor& x) const;

  // x in the model's precision.
  at::Tensor cast(const at::Tensor& x) const { return x.to(type_); }
  at::ScalarType type() const { return type_; }
  uint64_t seed() const { return seed_; }

 private:
  at::ScalarType norm_type() const;

  at::ScalarType type_;
  uint64_t seed_;
};

}  // namespace ductile::nn
