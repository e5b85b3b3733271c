#include "ductile/minima/vectors.h"

#include <array>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::minima {

double dot(std::span<const float> a, std::span<const float> b) {
  DUCTILE_CHECK(a.size() == b.size());
  // Eight partial sums, which a processor adds side by side.
  std::array<double, 8> sums{};
  size_t i = 0;
  for (; i + 8 <= a.size(); i += 8) {
    for (size_t k = 0; k < 8; ++k)
      sums[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
  }
  for (size_t k = 0; i < a.size(); ++i, ++k)
    sums[k] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double out = 0;
  for (const double sum : sums) out += sum;
  return out;
}

double norm(std::span<const float> a) { return std::sqrt(dot(a, a)); }

void add(std::span<float> a, double factor, std::span<const float> b) {
  DUCTILE_CHECK(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<float>(static_cast<double>(a[i]) + factor * static_cast<double>(b[i]));
}

std::vector<float> random_direction(int64_t size, uint64_t seed, uint64_t stream) {
  std::vector<float> out(static_cast<size_t>(size));
  Rng rng(seed, stream);
  for (float& value : out) value = rng.normal();
  const double length = norm(out);
  for (float& value : out) value = static_cast<float>(static_cast<double>(value) / length);
  return out;
}

// Cyclic Jacobi rotations (Golub and Van Loan, "Matrix Computations", section 8.5).
Eigen symmetric_eigen(std::vector<std::vector<double>> matrix) {
  const size_t n = matrix.size();
  std::vector<std::vector<double>>& a = matrix;
  Eigen out{std::vector<double>(n), std::vector<std::vector<double>>(n, std::vector<double>(n))};
  double whole = 0;
  for (size_t i = 0; i < n; ++i) {
    out.vectors[i][i] = 1;
    for (const double value : a[i]) whole += value * value;
  }
  const auto outside = [&] {
    double sum = 0;
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = 0; q < p; ++q) sum += 2 * a[p][q] * a[p][q];
    }
    return sum;
  };
  constexpr double kEnough = 1e-30;  // of the squares: rounding
  constexpr int kMaxSweeps = 60;     // six are usual
  for (int sweep = 0; sweep < kMaxSweeps && outside() > kEnough * whole; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        if (a[p][q] == 0) continue;
        // The smaller angle that makes a[p][q] zero.
        const double half = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const double tangent = std::copysign(1, half) / (std::abs(half) + std::hypot(half, 1));
        const double cosine = 1 / std::hypot(tangent, 1), sine = tangent * cosine;
        const auto turn = [&](double& left, double& right) {
          const double before = left;
          left = cosine * before - sine * right;
          right = sine * before + cosine * right;
        };
        for (size_t i = 0; i < n; ++i) turn(a[i][p], a[i][q]);
        for (size_t i = 0; i < n; ++i) turn(a[p][i], a[q][i]);
        for (size_t i = 0; i < n; ++i) turn(out.vectors[p][i], out.vectors[q][i]);
      }
    }
  }
  for (size_t i = 0; i < n; ++i) out.values[i] = a[i][i];
  return out;
}

}  // namespace ductile::minima
