#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ductile::tune {

// The sum of products in a fixed order of additions (eight partial sums), the same on every
// machine.
double dot(const double* a, const double* b, size_t n);

// The lower triangular L with L L' = A for a covariance matrix A that grows by one row at a time.
// A row costs n^2 / 2 products. Whoever has appended the same rows has the same bits.
class Cholesky {
 public:
  size_t size() const { return size_; }
  void clear();

  // `row`: the covariances with the points so far, size() of them. Where rounding would make the
  // matrix indefinite, the point is taken to be independent in a ten-billionth of its variance.
  void append(std::span<const double> row, double variance);

  // Solves L x = b on from x.size() rows to all: a solution grows with the matrix. `b` has the
  // entries of the new rows alone.
  void extend_forward(std::span<const double> b, std::vector<double>& x) const;
  // L x = b and L' x = b.
  std::vector<double> forward(std::span<const double> b) const;
  std::vector<double> backward(std::span<const double> b) const;

  double log_determinant() const;  // of A

 private:
  const double* row(size_t i) const { return values_.data() + i * (i + 1) / 2; }

  size_t size_ = 0;
  std::vector<double> values_;  // row after row
};

}  // namespace ductile::tune
