#pragma once

#include <cstdint>

#include "ductile/minima/surface.h"

namespace ductile::minima {

struct SharpnessOptions {
  double epsilon = 1e-3;
  int64_t subspace = 0;  // dimensions of the random subspace; 0: all weights
  int64_t steps = 20;    // of each ascent
  int64_t starts = 2;
  uint64_t seed = 1;
};

struct Sharpness {
  double epsilon = 0;
  double value = 0;    // Keskar's measure, in percent; infinite if the loss is so in the box
  double halfway = 0;  // the value that half of the steps found: as large if the ascent is over
  double loss = 0;     // the largest loss that was found in the box
};

// How much the loss rises near the surface's place x, as Keskar et al. measure it ("On large-batch
// training for deep learning: generalization gap and sharp minima", ICLR 2017, section 2.2.2):
//
//   100 * (max of f(x + A y) over y in C  -  f(x)) / (1 + f(x)),
//   C = { y : |y_i| <= epsilon * (|(A^+ x)_i| + 1) }.
//
// A is the identity, or, if a subspace is asked for, a matrix of as many columns of random signs;
// A^+ is its pseudoinverse. The paper leaves open how A is drawn.
//
// The maximum is sought by projected gradient ascent, each coordinate measured in the side of its
// box: y <- P(y + s * side * sign(gradient)), where P projects onto C. A step that does not raise
// the loss is taken back, and the next one is half as long. The first step may reach any corner,
// where the maximum of a convex loss lies. The first ascent begins at x, each other one at a random
// point of C. What is found is a lower bound of the maximum. The surface's loss at x is `loss`.
Sharpness sharpness(Surface& surface, double loss, const SharpnessOptions& options);

}  // namespace ductile::minima
