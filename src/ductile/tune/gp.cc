#include "ductile/tune/gp.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ductile/base/error.h"

namespace ductile::tune {

double matern52(double distance) {
  const double r = std::sqrt(5.0) * distance;
  return (1 + r + r * r / 3) * std::exp(-r);
}

double scaled_distance(const Point& a, const Point& b, std::span<const double> lengths) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) {
    const double r = (a[d] - b[d]) / lengths[d];
    sum += r * r;
  }
  return std::sqrt(sum);
}

GaussianProcess::GaussianProcess(std::vector<Point> points, std::vector<double> values,
                                 Scales scales)
    : points_(std::move(points)), scales_(std::move(scales)) {
  DUCTILE_CHECK(points_.size() == values.size(), "{} values", values.size());
  std::vector<double> row;
  for (size_t i = 0; i < points_.size(); ++i) {
    row.clear();
    for (size_t j = 0; j < i; ++j)
      row.push_back(scales_.signal *
                    matern52(scaled_distance(points_[i], points_[j], scales_.lengths)));
    factor_.append(row, scales_.signal + scales_.noise);
  }
  const std::vector<double> half = factor_.forward(values);
  weights_ = factor_.backward(half);
  log_likelihood_ = -0.5 * (dot(half.data(), half.data(), half.size()) + factor_.log_determinant() +
                            static_cast<double>(half.size()) * std::log(2 * std::numbers::pi));
}

Normal GaussianProcess::predict(const Point& point) const {
  std::vector<double> k;
  for (const Point& p : points_)
    k.push_back(scales_.signal * matern52(scaled_distance(p, point, scales_.lengths)));
  const std::vector<double> v = factor_.forward(k);
  return {dot(k.data(), weights_.data(), k.size()),
          std::max(0.0, scales_.signal - dot(v.data(), v.data(), v.size()))};
}

GaussianProcess::Scales usual_scales(size_t num_features) {
  // Longer ones in more dimensions, or every point would be a stranger to every other (Hvarfner et
  // al., "Vanilla Bayesian optimization performs great in high dimensions", ICML 2024).
  const double length = 0.4 * std::sqrt(static_cast<double>(std::max<size_t>(num_features, 1)));
  return {std::vector<double>(num_features, length), 1, 0.05};
}

GaussianProcess::Scales fit_scales(const std::vector<Point>& points,
                                   const std::vector<double>& values, bool ard,
                                   GaussianProcess::Scales start) {
  const size_t dims = start.lengths.size();
  const GaussianProcess::Scales usual = usual_scales(dims);
  const size_t num_lengths = ard ? dims : std::min<size_t>(dims, 1);
  const auto scales_at = [&](const std::vector<double>& x) {
    GaussianProcess::Scales s;
    for (size_t d = 0; d < dims; ++d) s.lengths.push_back(std::exp(x[2 + (ard ? d : 0)]));
    s.signal = std::exp(x[0]);
    s.noise = std::exp(x[1]);
    return s;
  };
  const auto prior = [](double x, double mean, double deviation) {
    const double z = (x - mean) / deviation;
    return -0.5 * z * z;
  };
  const auto value = [&](const std::vector<double>& x) {
    double sum = GaussianProcess(points, values, scales_at(x)).log_likelihood();
    sum += prior(x[0], std::log(usual.signal), 0.7) + prior(x[1], std::log(usual.noise), 1.5);
    for (size_t d = 0; d < num_lengths; ++d)
      sum += prior(x[2 + d], std::log(usual.lengths[d]), 0.8);
    return sum;
  };
  std::vector<double> x = {std::log(start.signal), std::log(start.noise)};
  for (size_t d = 0; d < num_lengths; ++d) x.push_back(std::log(start.lengths[d]));
  return scales_at(climb(value, x, 0.8, 12 * static_cast<int>(x.size()) + 20));
}

std::vector<double> climb(const std::function<double(const std::vector<double>&)>& value,
                          std::vector<double> start, double step, int calls) {
  std::vector<double> x = std::move(start), steps(x.size(), step);
  double best = value(x);
  for (size_t d = 0; calls > 0 && !x.empty(); d = (d + 1) % x.size()) {
    if (std::all_of(steps.begin(), steps.end(),
                    [&](double s) { return std::abs(s) < 0.05 * step; }))
      break;
    if (std::abs(steps[d]) < 0.05 * step) continue;
    const double old = x[d];
    bool better = false;
    for (const double sign : {1.0, -1.0}) {
      x[d] = old + sign * steps[d];
      const double here = value(x);
      --calls;
      if (here > best) {
        best = here;
        steps[d] *= 1.3 * sign;
        better = true;
        break;
      }
    }
    if (better) continue;
    x[d] = old;
    steps[d] *= 0.4;
  }
  return x;
}

}  // namespace ductile::tune
