#pragma once

#include <cstdint>
#include <vector>

#include "ductile/minima/surface.h"

namespace ductile::minima {

// Losses on lines, or on a plane, through the surface's place.
struct Slices {
  std::vector<double> places;  // along each direction, from -1 to 1; the middle one is 0
  // Lines: a row for each direction, with the losses at the places. A plane: a row for each place
  // along the second direction, with the losses at the places along the first.
  std::vector<std::vector<double>> losses;
};

// A random direction whose filters have the norms of the place's own filters, each, as Li et al.
// define it ("Visualizing the loss landscape of neural nets", NeurIPS 2018, section 4): a slice
// then looks the same for networks that compute the same with filters of other scales. Weights of
// no filter (biases, and those of normalisation layers) do not move, as in the authors' pictures.
std::vector<float> filter_normalised_direction(const Surface& surface, uint64_t seed,
                                               uint64_t number);

inline constexpr int64_t kLines = 3, kLinePlaces = 41, kPlanePlaces = 21;

// One line along each of kLines directions; the plane of the first two.
Slices slice_lines(Surface& surface, uint64_t seed);
Slices slice_plane(Surface& surface, uint64_t seed);

}  // namespace ductile::minima
