#include "ductile/tune/cholesky.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"

namespace ductile::tune {

double dot(const double* a, const double* b, size_t n) {
  double part[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (size_t k = 0; k < 8; ++k) part[k] += a[i + k] * b[i + k];
  for (size_t k = 0; i < n; ++i, ++k) part[k] += a[i] * b[i];
  return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

void Cholesky::clear() {
  size_ = 0;
  values_.clear();
}

void Cholesky::append(std::span<const double> covariances, double variance) {
  DUCTILE_CHECK(covariances.size() == size_, "{} covariances, {} rows", covariances.size(), size_);
  const size_t begin = values_.size();
  values_.resize(begin + size_ + 1);
  double* out = values_.data() + begin;
  for (size_t i = 0; i < size_; ++i) out[i] = (covariances[i] - dot(row(i), out, i)) / row(i)[i];
  const double left = variance - dot(out, out, size_);
  out[size_] = std::sqrt(std::max(left, 1e-10 * variance));
  ++size_;
}

void Cholesky::extend_forward(std::span<const double> b, std::vector<double>& x) const {
  const size_t from = x.size();
  DUCTILE_CHECK(from + b.size() == size_, "{} and {} of {} rows", from, b.size(), size_);
  x.reserve(size_);
  for (size_t i = from; i < size_; ++i)
    x.push_back((b[i - from] - dot(row(i), x.data(), i)) / row(i)[i]);
}

std::vector<double> Cholesky::forward(std::span<const double> b) const {
  std::vector<double> x;
  extend_forward(b, x);
  return x;
}

std::vector<double> Cholesky::backward(std::span<const double> b) const {
  DUCTILE_CHECK(b.size() == size_, "{} of {} rows", b.size(), size_);
  std::vector<double> x(b.begin(), b.end());
  for (size_t i = size_; i-- > 0;) {
    x[i] /= row(i)[i];
    for (size_t j = 0; j < i; ++j) x[j] -= row(i)[j] * x[i];
  }
  return x;
}

double Cholesky::log_determinant() const {
  double sum = 0;
  for (size_t i = 0; i < size_; ++i) sum += std::log(row(i)[i]);
  return 2 * sum;
}

}  // namespace ductile::tune
