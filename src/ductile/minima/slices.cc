#include "ductile/minima/slices.h"

#include <cmath>

#include "ductile/base/rng.h"
#include "ductile/minima/vectors.h"

namespace ductile::minima {
namespace {

using Vector = std::vector<float>;

constexpr uint64_t kDirectionStream = 4;

// The values of a filter, side by side.
Vector values_of(std::span<const float> all, const Filter& filter) {
  Vector out(static_cast<size_t>(filter.size));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = all[static_cast<size_t>(filter.offset) + i * static_cast<size_t>(filter.stride)];
  return out;
}

// An odd number of places, so that 0 is exactly one of them.
std::vector<double> places_of(int64_t count) {
  std::vector<double> out;
  const int64_t half = count / 2;
  for (int64_t i = -half; i <= half; ++i)
    out.push_back(static_cast<double>(i) / static_cast<double>(half));
  return out;
}

}  // namespace

Vector filter_normalised_direction(const Surface& surface, uint64_t seed, uint64_t number) {
  const std::span<const float> x = surface.weights();
  Vector out(x.size());
  Rng rng(seed, kDirectionStream, number);
  for (const Filter& filter : surface.filters()) {
    Vector mine(static_cast<size_t>(filter.size));
    for (float& value : mine) value = rng.normal();
    const double length = norm(mine);
    const double scale = length > 0 ? norm(values_of(x, filter)) / length : 0;
    const auto at = static_cast<size_t>(filter.offset), stride = static_cast<size_t>(filter.stride);
    for (size_t i = 0; i < mine.size(); ++i)
      out[at + i * stride] = static_cast<float>(mine[i] * scale);
  }
  return out;
}

Slices slice_lines(Surface& surface, uint64_t seed) {
  const std::span<const float> x = surface.weights();
  Slices out{places_of(kLinePlaces), {}};
  for (int64_t line = 0; line < kLines; ++line) {
    const Vector direction =
        filter_normalised_direction(surface, seed, static_cast<uint64_t>(line));
    std::vector<double>& losses = out.losses.emplace_back();
    for (const double place : out.places) {
      Vector at(x.begin(), x.end());
      add(at, place, direction);
      losses.push_back(surface.loss(at));
    }
  }
  return out;
}

Slices slice_plane(Surface& surface, uint64_t seed) {
  const std::span<const float> x = surface.weights();
  Slices out{places_of(kPlanePlaces), {}};
  const Vector first = filter_normalised_direction(surface, seed, 0),
               second = filter_normalised_direction(surface, seed, 1);
  for (const double up : out.places) {
    std::vector<double>& losses = out.losses.emplace_back();
    for (const double along : out.places) {
      Vector at(x.begin(), x.end());
      add(at, along, first);
      add(at, up, second);
      losses.push_back(surface.loss(at));
    }
  }
  return out;
}

}  // namespace ductile::minima
