#pragma once

#include <optional>
#include <span>

namespace ductile::optim {

// k0 + k1 x + k2 x^2.
struct Quadratic {
  double k0 = 0, k1 = 0, k2 = 0;
};

// The least-squares fit of a parabola to the points (x[i], y[i]); exact through three points.
// nullopt if the points do not determine one: fewer than three distinct x, or a value that is not
// finite. x and y have the same length.
std::optional<Quadratic> fit_quadratic(std::span<const double> x, std::span<const double> y);

}  // namespace ductile::optim
