#pragma once

#include <span>
#include <vector>

namespace ductile::tune {

// A monotone map of a task's values, on whatever scale and with whatever outliers, to numbers
// around 0 with a deviation of 1, for models that expect such: the quantile of the normal
// distribution at a value's place among those that the map was made from. What diverged counts as
// the largest. Below the least value the map goes on in proportion, so that new best values are
// told apart.
class Warp {
 public:
  Warp() = default;
  explicit Warp(std::span<const double> values);

  double operator()(double value) const { return (quantile(value) - mean_) / deviation_; }

 private:
  double quantile(double value) const;

  std::vector<double> sorted_ = {0};
  double scale_ = 1, mean_ = 0, deviation_ = 1;
};

}  // namespace ductile::tune
