#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ductile/tune/cholesky.h"
#include "ductile/tune/space.h"

namespace ductile::tune {

// The Matern covariance of smoothness 5/2 at a distance in length scales; 1 at 0.
double matern52(double distance);

// The distance of two points, each coordinate in units of its length scale.
double scaled_distance(const Point& a, const Point& b, std::span<const double> lengths);

struct Normal {
  double mean = 0, variance = 0;
};

// Gaussian-process regression (Rasmussen and Williams, "Gaussian Processes for Machine Learning",
// 2006, algorithm 2.1) of values around 0, for at most a thousand points.
class GaussianProcess {
 public:
  struct Scales {
    std::vector<double> lengths;  // one for each coordinate
    double signal = 1;            // variance of the function
    double noise = 0.01;          // variance of what is observed around it
  };

  GaussianProcess(std::vector<Point> points, std::vector<double> values, Scales scales);

  // The function at a point, without noise.
  Normal predict(const Point& point) const;
  double log_likelihood() const { return log_likelihood_; }

 private:
  std::vector<Point> points_;
  Scales scales_;
  Cholesky factor_;
  std::vector<double> weights_;  // A^-1 y
  double log_likelihood_ = 0;
};

// The scales that are most likely, given the values and mild priors; with `ard` a length for each
// coordinate, else one for all. Begins from `start`, which has lengths for all coordinates.
GaussianProcess::Scales fit_scales(const std::vector<Point>& points,
                                   const std::vector<double>& values, bool ard,
                                   GaussianProcess::Scales start);
GaussianProcess::Scales usual_scales(size_t num_features);

// Climbs from `start`, one coordinate after the other, with steps of `step` that grow where they
// help and shrink where they do not, for at most `calls` calls of the function.
std::vector<double> climb(const std::function<double(const std::vector<double>&)>& value,
                          std::vector<double> start, double step, int calls);

}  // namespace ductile::tune
