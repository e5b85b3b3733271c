#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/options.h"
#include "ductile/minima/lanczos.h"
#include "ductile/minima/sharpness.h"
#include "ductile/minima/slices.h"
#include "ductile/minima/surface.h"

namespace ductile::minima {

// What `ductile minima` measures.
struct Options {
  int64_t samples = 1000;  // of the training set, on which the surface is the mean loss
  std::vector<double> epsilon = {1e-3, 5e-4};
  int64_t subspace = 0;
  int64_t steps = 20;
  int64_t lanczos = 40;
  std::string slices = "1d";
  int64_t seed = 1;
};
void describe(Describer& d, Options& o);

// Throws unavailable where so much memory does not hold the vectors that Lanczos' method keeps for
// this many weights; the text says how many products it would hold. `available` is in bytes; 0 =
// not known.
void require_memory(int64_t num_weights, const Options& options, int64_t available);

struct Measurement {
  double loss = 0, gradient_norm = 0, weight_norm = 0;  // at the surface's place
  std::vector<Sharpness> sharpness;                     // of each epsilon
  std::optional<Spectrum> hessian;
  std::optional<Slices> slices;
  int64_t losses = 0, gradients = 0;  // that were computed
};

// Measures the surface at its place. After each loss and gradient, each() gets the share of the
// planned work that is done; it may throw. Throws conflict if the loss or its gradient is not
// finite at the place, invalid_argument for options that do not fit the surface, and unavailable
// (require_memory) before anything is computed.
Measurement measure(Surface& surface, const Options& options,
                    const std::function<void(double share)>& each);

}  // namespace ductile::minima
