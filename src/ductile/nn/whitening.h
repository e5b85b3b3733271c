#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace ductile::nn {

// Filters [2 * C * k * k, C, k, k] that make the k x k patches of images [N, C, H, W] (float)
// white: with the second moments M of all patches, not centred, and M v = s v, the filters v /
// sqrt(s + eps) in ascending order of s, and then their negatives. The bits depend on the images
// alone.
at::Tensor whitening_filters(const at::Tensor& images, int64_t kernel, double eps);

}  // namespace ductile::nn
