#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "ductile/base/rng.h"
#include "ductile/minima/surface.h"

// Losses whose Hessians and maxima are known.
namespace ductile::minima::testing {

using Matrix = std::vector<std::vector<double>>;

// base + (w - centre)' H (w - centre) / 2, seen from x.
class Quadratic : public Surface {
 public:
  Quadratic(Matrix h, std::vector<float> x, std::vector<double> centre, double base = 0.5)
      : h_(std::move(h)), x_(std::move(x)), centre_(std::move(centre)), base_(base) {}

  std::span<const float> weights() const override { return x_; }
  std::span<const Filter> filters() const override { return filter_list; }
  double loss(std::span<const float> at) override {
    double sum = 0;
    for (size_t i = 0; i < at.size(); ++i) sum += (at[i] - centre_[i]) * slope(at, i);
    return base_ + sum / 2;
  }
  double gradient(std::span<const float> at, std::span<float> out) override {
    for (size_t i = 0; i < at.size(); ++i) out[i] = static_cast<float>(slope(at, i));
    return loss(at);
  }

  std::vector<Filter> filter_list;

 private:
  double slope(std::span<const float> at, size_t i) const {
    double sum = 0;
    for (size_t j = 0; j < at.size(); ++j) sum += h_[i][j] * (at[j] - centre_[j]);
    return sum;
  }

  Matrix h_;
  std::vector<float> x_;
  std::vector<double> centre_;
  double base_;
};

// The symmetric matrix with these eigenvalues and random eigenvectors.
inline Matrix with_eigenvalues(const std::vector<double>& values, uint64_t seed) {
  const size_t n = values.size();
  Matrix q(n, std::vector<double>(n)), h(n, std::vector<double>(n));
  Rng rng(seed);
  for (size_t i = 0; i < n; ++i) {  // Gram-Schmidt
    for (double& value : q[i]) value = rng.normal();
    for (int round = 0; round < 2; ++round) {
      for (size_t k = 0; k < i; ++k) {
        double along = 0;
        for (size_t j = 0; j < n; ++j) along += q[i][j] * q[k][j];
        for (size_t j = 0; j < n; ++j) q[i][j] -= along * q[k][j];
      }
    }
    double square = 0;
    for (const double value : q[i]) square += value * value;
    for (double& value : q[i]) value /= std::sqrt(square);
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t k = 0; k < n; ++k) h[i][j] += values[k] * q[k][i] * q[k][j];
    }
  }
  return h;
}

}  // namespace ductile::minima::testing
