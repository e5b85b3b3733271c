#include "ductile/minima/lanczos.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/minima/vectors.h"

namespace ductile::minima {
namespace {

using Vector = std::vector<float>;

constexpr uint64_t kLanczosStream = 3;
// The error of the central difference grows with the square of the step, that of the rounding of
// fp32 gradients falls with it. Where a sample's activation crosses the kink of a ReLU, the
// gradient jumps, and the jump is divided by the step: over a short one a single jump outweighs the
// curvature, and Lanczos' method seeks just those directions. Over a longer one many are averaged.
constexpr double kRelativeStep = 1e-3;

// The matrix that Lanczos' recurrence has found so far: its diagonal, and what stands beside it.
// The last value beside it leads out of the matrix: to the remainder of the recurrence.
struct Tridiagonal {
  std::vector<double> diagonal, beside;

  Eigen eigen() const {
    const size_t n = diagonal.size();
    std::vector<std::vector<double>> rows(n, std::vector<double>(n));
    for (size_t i = 0; i < n; ++i) {
      rows[i][i] = diagonal[i];
      if (i + 1 < n) rows[i][i + 1] = rows[i + 1][i] = beside[i];
    }
    return symmetric_eigen(std::move(rows));
  }
};

Vector ritz_vector(const std::vector<double>& weights, const std::vector<Vector>& basis) {
  Vector out(basis.front().size());
  for (size_t i = 0; i < basis.size(); ++i) add(out, weights[i], basis[i]);
  const double length = norm(out);
  for (float& value : out) value = static_cast<float>(value / length);
  return out;
}

// Eigenvalues cost more than a product where the matrix is large.
bool is_looked_at(size_t products) { return products <= 50 || products % 10 == 0; }

}  // namespace

double product_step(double weight_norm) { return kRelativeStep * (1 + weight_norm); }

void hessian_product(Surface& surface, std::span<const float> direction, double step,
                     std::span<float> out) {
  const std::span<const float> x = surface.weights();
  Vector at(x.begin(), x.end()), back(x.size());
  add(at, step, direction);
  const double forward_loss = surface.gradient(at, out);
  std::ranges::copy(x, at.begin());
  add(at, -step, direction);
  const double back_loss = surface.gradient(at, back);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>((static_cast<double>(out[i]) - back[i]) / (2 * step));
  if (!std::isfinite(forward_loss) || !std::isfinite(back_loss) || !std::isfinite(norm(out)))
    fail(ErrorCode::conflict,
         "the gradient is not finite at weights that are {:.3g} away, so the Hessian has no "
         "eigenvalues to find",
         step);
}

Spectrum hessian_spectrum(Surface& surface, const LanczosOptions& options) {
  const std::span<const float> x = surface.weights();
  DUCTILE_CHECK(options.max_products > 0 && !x.empty());
  const size_t most = std::min(static_cast<size_t>(options.max_products), x.size());
  Spectrum out;
  out.step = product_step(norm(x));
  std::vector<Vector> basis;
  Tridiagonal found;
  Eigen eigen;
  size_t top = 0;
  Vector next = random_direction(static_cast<int64_t>(x.size()), options.seed, kLanczosStream);
  while (true) {
    basis.push_back(next);
    hessian_product(surface, basis.back(), out.step, next);
    found.diagonal.push_back(dot(next, basis.back()));
    for (int round = 0; round < 2; ++round) {  // twice is enough (Parlett)
      for (const Vector& v : basis) add(next, -dot(next, v), v);
    }
    const double remainder = norm(next);
    found.beside.push_back(remainder);
    const bool last = basis.size() == most || remainder == 0;
    if (last || is_looked_at(basis.size())) {
      eigen = found.eigen();
      const auto [low, high] = std::ranges::minmax_element(eigen.values);
      const auto place = [&](auto at) { return static_cast<size_t>(at - eigen.values.begin()); };
      top = place(high);
      out.largest = *high;
      out.residual = std::abs(remainder * eigen.vectors[top].back());
      out.smallest = *low;
      out.smallest_residual = std::abs(remainder * eigen.vectors[place(low)].back());
      out.converged =
          out.residual <= options.tolerance * std::abs(out.largest) && (basis.size() > 1 || last);
      if (last || out.converged) break;
    }
    for (float& value : next) value = static_cast<float>(value / remainder);
  }
  out.products = static_cast<int64_t>(basis.size());

  const Vector best = ritz_vector(eigen.vectors[top], basis);
  hessian_product(surface, best, out.step / 2, next);
  out.check = dot(next, best);
  add(next, -out.check, best);
  out.check_residual = norm(next);
  return out;
}

}  // namespace ductile::minima
