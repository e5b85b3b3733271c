#pragma once

#include <ATen/core/Tensor.h>

#include "ductile/nn/kernels/product.h"

namespace ductile::nn {

// A float tensor of two dimensions, as the kernels see it.
inline kernels::Matrix matrix_of(const at::Tensor& t) {
  return {t.data_ptr<float>(), t.stride(0), t.stride(1)};
}

}  // namespace ductile::nn
