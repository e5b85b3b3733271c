#include "ductile/optim/quadratic_fit.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "ductile/base/error.h"

namespace ductile::optim {

// By Gram-Schmidt on polynomials that are orthogonal over the points, in x scaled to [-1, 1]:
// the normal equations would square the condition number.
std::optional<Quadratic> fit_quadratic(std::span<const double> x, std::span<const double> y) {
  DUCTILE_CHECK(x.size() == y.size(), "points have two coordinates");
  const auto finite = [](double v) { return std::isfinite(v); };
  if (!std::ranges::all_of(x, finite) || !std::ranges::all_of(y, finite)) return std::nullopt;
  if (std::set<double>(x.begin(), x.end()).size() < 3) return std::nullopt;
  double unit = 0;
  for (const double v : x) unit = std::max(unit, std::abs(v));

  const auto n = static_cast<double>(x.size());
  double mean = 0;  // p0 = 1, p1 = s - mean, p2 = (s - mean2) p1 - norm1 / n, with s = x / unit
  for (const double v : x) mean += v / unit / n;
  double norm1 = 0, moment = 0;
  for (const double v : x) {
    const double p1 = v / unit - mean;
    norm1 += p1 * p1;
    moment += v / unit * p1 * p1;
  }
  const double mean2 = moment / norm1, shift = norm1 / n;
  double c0 = 0, c1 = 0, c2 = 0, norm2 = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double s = x[i] / unit, p1 = s - mean, p2 = (s - mean2) * p1 - shift;
    c0 += y[i] / n;
    c1 += y[i] * p1 / norm1;
    c2 += y[i] * p2;
    norm2 += p2 * p2;
  }
  if (!(norm2 > 0)) return std::nullopt;
  c2 /= norm2;
  const Quadratic fit = {c0 - c1 * mean + c2 * (mean * mean2 - shift),
                         (c1 - c2 * (mean + mean2)) / unit, c2 / (unit * unit)};
  if (!finite(fit.k0) || !finite(fit.k1) || !finite(fit.k2)) return std::nullopt;
  return fit;
}

}  // namespace ductile::optim
