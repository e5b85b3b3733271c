#pragma once

#include <cstdint>
#include <span>

namespace ductile::minima {

// Weights that are scaled together: what makes one output of a layer. They lie `stride` apart.
struct Filter {
  int64_t offset = 0, size = 0, stride = 1;
};

// A loss as a function of weights, and the place at which it is examined. One thread.
class Surface {
 public:
  virtual ~Surface() = default;

  // The place.
  virtual std::span<const float> weights() const = 0;
  // The filters among the weights, in ascending order of their offsets; no two have a weight in
  // common, and some weights are of none.
  virtual std::span<const Filter> filters() const = 0;

  // The loss at other weights, which may be not finite.
  virtual double loss(std::span<const float> at) = 0;
  // The same, and its gradient.
  virtual double gradient(std::span<const float> at, std::span<float> out) = 0;
};

}  // namespace ductile::minima
