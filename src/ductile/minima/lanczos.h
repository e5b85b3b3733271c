#pragma once

#include <cstdint>
#include <span>

#include "ductile/minima/surface.h"

namespace ductile::minima {

// The length by which weights of this norm are moved for a product with the Hessian: 1e-3 of it,
// and more where the weights are small. It is long for the sake of kinks (lanczos.cc): what is
// found for a network of ReLUs is the curvature of its loss on this scale, kinks included, and not
// that of the exact second derivatives.
double product_step(double weight_norm);

// Writes the Hessian times the unit vector `direction` into `out`, by the central difference of the
// gradients at the weights moved `step` forward and back.
void hessian_product(Surface& surface, std::span<const float> direction, double step,
                     std::span<float> out);

struct LanczosOptions {
  int64_t max_products = 40;
  double tolerance = 1e-3;  // the residual that is small enough, as a share of the eigenvalue
  uint64_t seed = 1;
};

// Extreme eigenvalues of the Hessian at the surface's place.
struct Spectrum {
  double largest = 0, smallest = 0;  // algebraically, as far as they were found
  double residual = 0;               // of `largest`: what Lanczos' recurrence says of it
  double smallest_residual = 0;
  bool converged = false;  // residual <= tolerance * |largest|
  int64_t products = 0;    // with the Hessian, without the check
  double step = 0;         // product_step()
  // The check: the Rayleigh quotient of the eigenvector by products of half the step, and the norm
  // of what the product differs from it. An eigenvalue lies within that norm.
  double check = 0, check_residual = 0;
};

// By Lanczos' method with full reorthogonalisation (Golub and Van Loan, section 10.3), from a
// random start. It keeps a vector of the weights' size for each product. Throws conflict if a
// gradient is not finite.
Spectrum hessian_spectrum(Surface& surface, const LanczosOptions& options);

}  // namespace ductile::minima
