// A build without Qhull: the same interpolation by linear programmes, another choice among equals.
#include "ductile/base/error.h"
#include "ductile/sim/delaunay.h"

namespace ductile::sim {

bool Delaunay::has_qhull() { return false; }

Delaunay::Delaunay(std::span<const Point3> points, std::span<const StepTime> values)
    : points_(points.begin(), points.end()), values_(values.begin(), values.end()) {
  DUCTILE_CHECK(points.size() == values.size());
}

std::optional<StepTime> Delaunay::at(const Point3& point) const {
  return interpolate_delaunay(points_, values_, point);
}

}  // namespace ductile::sim
