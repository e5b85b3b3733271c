#pragma once

#include <cstdint>
#include <span>

namespace ductile::minima {

// Weights that lie side by side and are scaled together: what makes one output of a layer.
struct Filter {
  int64_t offset = 0, size = 0;
};

// A loss as a function of weights, and the place at which it is examined. One thread.
class Surface {
 public:
  virtual ~Surface() = default;

  // The place.
  virtual std::span<const float> weights() const = 0;
  // The filters among the weights, in ascending order; weights of no filter lie between them.
  virtual std::span<const Filter> filters() const = 0;

  // The loss at other weights, which may be not finite.
  virtual double loss(std::span<const float> at) = 0;
  // The same, and its gradient.
  virtual double gradient(std::span<const float> at, std::span<float> out) = 0;
};

}  // namespace ductile::minima
