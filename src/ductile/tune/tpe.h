#pragma once

#include <vector>

#include "ductile/base/rng.h"
#include "ductile/tune/space.h"

namespace ductile::tune {

// The density of the tree-structured Parzen estimator (Bergstra et al., "Algorithms for
// hyper-parameter optimization", NeurIPS 2011, section 4) on the unit cube, in its multivariate
// form: the mean of one product of kernels for each point, and one wide one as the prior. The
// kernel is a normal distribution cut to [0, 1]; that of a choice leaves a part of its weight to
// all choices alike.
class ParzenDensity {
 public:
  ParzenDensity(const Space& space, std::vector<Point> points);

  double log_density(const Point& x) const;
  Point draw(Rng& rng) const;
  double width() const { return width_; }

 private:
  // Of one kernel all that does not depend on x: the logarithm of its factors' scales.
  double log_scale(const Point& center, double width) const;
  double log_kernel(const Point& center, double width, const Point& x) const;

  std::vector<Point> points_;  // the last one is the prior's center
  std::vector<int> choices_;   // of each dimension; 0: it is none
  double width_;
  std::vector<double> log_scales_;  // of each kernel
};

}  // namespace ductile::tune
