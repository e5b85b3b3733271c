#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ductile/sim/profile.h"

namespace ductile::sim {

// Linear interpolation over the Delaunay triangulation of points in three dimensions. Where points
// lie on one sphere the triangulation is not unique, and measurements on a grid mostly do: which
// one is chosen shifts a step time by up to some per cent. It is Qhull's, which is also the
// published simulators'.
class Delaunay {
 public:
  // The spans are copied. Fewer than five points, or all in one plane: nothing is ever inside.
  Delaunay(std::span<const Point3> points, std::span<const StepTime> values);
  // Nothing outside the hull.
  std::optional<StepTime> at(const Point3& point) const;

 private:
  struct Simplex {
    std::array<int32_t, 4> corners;
    std::array<int32_t, 4> neighbours;  // opposite to each corner; -1: the outside
    std::array<double, 5> plane;        // of its lifted corners: normal, offset
    bool flat = false;                  // lies between two faces of one cell: holds nothing
    std::array<double, 12> inverse{};   // of the matrix of edges from the last corner; that corner
  };
  using Weights = std::array<double, 4>;
  void find_simplices();
  int32_t find(const Point3& point, Weights& weights) const;
  int32_t search_all(const Point3& point, Weights& weights) const;
  Weights weights_in(int32_t simplex, const Point3& point) const;
  double above(int32_t simplex, const Point3& point) const;

  std::vector<Point3> points_;
  std::vector<StepTime> values_;
  std::vector<Simplex> simplices_;
  double lift_scale_ = 1, lift_shift_ = 0;  // of the fourth coordinate
  Point3 low_, high_;                       // box around the points
};

}  // namespace ductile::sim
