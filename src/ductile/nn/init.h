#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

// First values of parameters: float tensors whose element i depends on (seed, name, i) alone, drawn
// by Philox. Never on libtorch's generator, the order of making or the number of threads.
namespace ductile::nn {

// Uniform in [-bound, bound).
at::Tensor init_uniform(const std::vector<int64_t>& shape, double bound, uint64_t seed,
                        std::string_view name);

at::Tensor init_normal(const std::vector<int64_t>& shape, double stddev, uint64_t seed,
                       std::string_view name);

at::Tensor init_constant(const std::vector<int64_t>& shape, double value);

}  // namespace ductile::nn
