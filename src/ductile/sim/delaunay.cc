// The triangulation by Qhull (Barber, Dobkin, Huhdanpaa 1996), with the options that SciPy gives
// it.
#include "ductile/sim/delaunay.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <unordered_map>

#include "ductile/base/error.h"

extern "C" {
#include <libqhull_r/libqhull_r.h>
}

namespace ductile::sim {
namespace {

constexpr double kSlack = 2.3e-14;  // on weights

// The inverse of the edges from the last corner, and that corner.
void invert(const std::vector<Point3>& points, const std::array<int32_t, 4>& corners, bool& flat,
            std::array<double, 12>& inverse) {
  const Point3& o = points[corners[3]];
  double m[3][3];
  for (int c = 0; c < 3; ++c) {
    const Point3& p = points[corners[c]];
    m[0][c] = p.nodes - o.nodes;
    m[1][c] = p.replicas - o.replicas;
    m[2][c] = p.local - o.local;
  }
  const auto minor = [&](int r, int c) {
    const int r1 = (r + 1) % 3, r2 = (r + 2) % 3, c1 = (c + 1) % 3, c2 = (c + 2) % 3;
    return m[r1][c1] * m[r2][c2] - m[r1][c2] * m[r2][c1];
  };
  const double determinant = m[0][0] * minor(0, 0) + m[0][1] * minor(0, 1) + m[0][2] * minor(0, 2);
  flat = std::abs(determinant) < 1e-9;  // measurements are at whole numbers
  if (flat) return;
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) inverse[r * 3 + c] = minor(c, r) / determinant;
  inverse[9] = o.nodes;
  inverse[10] = o.replicas;
  inverse[11] = o.local;
}

}  // namespace

Delaunay::Delaunay(std::span<const Point3> points, std::span<const StepTime> values)
    : points_(points.begin(), points.end()), values_(values.begin(), values.end()) {
  DUCTILE_CHECK(points.size() == values.size());
  if (points_.empty()) return;
  low_ = high_ = points_.front();
  for (const Point3& p : points_) {
    low_ = {std::min(low_.nodes, p.nodes), std::min(low_.replicas, p.replicas),
            std::min(low_.local, p.local)};
    high_ = {std::max(high_.nodes, p.nodes), std::max(high_.replicas, p.replicas),
             std::max(high_.local, p.local)};
  }
  find_simplices();
}

void Delaunay::find_simplices() {
  if (points_.size() < 5) return;
  std::vector<coordT> coordinates;
  for (const Point3& p : points_)
    coordinates.insert(coordinates.end(), {p.nodes, p.replicas, p.local});
  char options[] = "qhull d Qbb Qc Qz Q12 Qt Pp";
  qhT state;
  qhT* qh = &state;
  qh_zero(qh, nullptr);
  // Qhull's complaints (all points in a plane, say) leave nothing to interpolate; they are not
  // shown.
  FILE* silence = std::fopen("/dev/null", "w");
  const int failed = qh_new_qhull(qh, 3, static_cast<int>(points_.size()), coordinates.data(),
                                  False, options, nullptr, silence);
  if (failed == 0) {
    facetT *facet, *neighbor, **neighborp;
    vertexT *vertex, **vertexp;
    std::unordered_map<unsigned, int32_t> index;
    FORALLfacets {
      if (facet->upperdelaunay || !facet->simplicial) continue;
      index.emplace(facet->id, static_cast<int32_t>(index.size()));
    }
    FORALLfacets {
      if (facet->upperdelaunay || !facet->simplicial) continue;
      Simplex simplex{};
      int corner = 0;
      FOREACHvertex_(facet->vertices) {
        if (corner < 4) simplex.corners[corner++] = qh_pointid(qh, vertex->point);
      }
      corner = 0;
      FOREACHneighbor_(facet) {
        const auto found = index.find(neighbor->id);
        if (corner < 4) simplex.neighbours[corner++] = found == index.end() ? -1 : found->second;
      }
      for (int k = 0; k < 4; ++k) simplex.plane[k] = facet->normal[k];
      simplex.plane[4] = facet->offset;
      invert(points_, simplex.corners, simplex.flat, simplex.inverse);
      simplices_.push_back(simplex);
    }
    if (qh->SCALElast) {
      lift_scale_ = qh->last_newhigh / (qh->last_high - qh->last_low);
      lift_shift_ = -qh->last_low * lift_scale_;
    }
  }
  qh_freeqhull(qh, !qh_ALL);
  int still_held, total;
  qh_memfreeshort(qh, &still_held, &total);
  if (silence != nullptr) std::fclose(silence);
}

Delaunay::Weights Delaunay::weights_in(int32_t simplex, const Point3& point) const {
  const auto& inverse = simplices_[simplex].inverse;
  const double d[3] = {point.nodes - inverse[9], point.replicas - inverse[10],
                       point.local - inverse[11]};
  Weights weights = {0, 0, 0, 1};
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) weights[r] += inverse[r * 3 + c] * d[c];
    weights[3] -= weights[r];
  }
  return weights;
}

// Height of the lifted point above the simplex's plane.
double Delaunay::above(int32_t simplex, const Point3& p) const {
  const auto& plane = simplices_[simplex].plane;
  const double lifted =
      (p.nodes * p.nodes + p.replicas * p.replicas + p.local * p.local) * lift_scale_ + lift_shift_;
  return plane[4] + plane[0] * p.nodes + plane[1] * p.replicas + plane[2] * p.local +
         plane[3] * lifted;
}

// Faces of neighbouring cells may be cut along different diagonals, so on them the answer depends
// on which side is found. This is the search of SciPy's LinearNDInterpolator, from the first
// simplex: first uphill in the lifted planes, then towards the point; where flat simplices stop
// it, through all.
int32_t Delaunay::find(const Point3& point, Weights& weights) const {
  if (simplices_.empty() || point.nodes < low_.nodes - kSlack ||
      point.nodes > high_.nodes + kSlack || point.replicas < low_.replicas - kSlack ||
      point.replicas > high_.replicas + kSlack || point.local < low_.local - kSlack ||
      point.local > high_.local + kSlack)
    return -1;
  int32_t at = 0;
  double best = above(at, point);
  for (bool changed = true; changed && best <= 0;) {
    changed = false;
    for (int k = 0; k < 4; ++k) {
      const int32_t next = simplices_[at].neighbours[k];
      if (next < 0) continue;
      const double height = above(next, point);
      if (height <= best + kSlack * (1 + std::abs(best))) continue;
      at = next;
      best = height;
      changed = true;
    }
  }
  for (size_t hop = 0; hop < 1 + simplices_.size() / 4; ++hop) {
    if (simplices_[at].flat) break;
    weights = weights_in(at, point);
    bool hopped = false, inside = true;
    for (int k = 0; k < 4; ++k) {
      if (weights[k] < -kSlack) {
        const int32_t next = simplices_[at].neighbours[k];
        if (next < 0) return -1;
        at = next;
        hopped = true;
        break;
      }
      inside &= weights[k] <= 1 + kSlack;
    }
    if (hopped) continue;
    if (inside) return at;
    break;
  }
  return search_all(point, weights);
}

int32_t Delaunay::search_all(const Point3& point, Weights& weights) const {
  constexpr double kWide = 1.5e-8;  // towards a flat simplex
  for (int32_t s = 0; s < static_cast<int32_t>(simplices_.size()); ++s) {
    if (!simplices_[s].flat) {
      weights = weights_in(s, point);
      if (std::all_of(weights.begin(), weights.end(),
                      [](double w) { return w >= -kSlack && w <= 1 + kSlack; }))
        return s;
      continue;
    }
    for (const int32_t beside : simplices_[s].neighbours) {
      if (beside < 0 || simplices_[beside].flat) continue;
      weights = weights_in(beside, point);
      bool inside = true;
      for (int k = 0; k < 4; ++k)
        inside &= weights[k] >= (simplices_[beside].neighbours[k] == s ? -kWide : -kSlack) &&
                  weights[k] <= 1 + kSlack;
      if (inside) return beside;
    }
  }
  return -1;
}

std::optional<StepTime> Delaunay::at(const Point3& point) const {
  Weights weights;
  const int32_t simplex = find(point, weights);
  if (simplex < 0) return std::nullopt;
  StepTime sum;
  for (int k = 0; k < 4; ++k) {
    sum.step += weights[k] * values_[simplices_[simplex].corners[k]].step;
    sum.sync += weights[k] * values_[simplices_[simplex].corners[k]].sync;
  }
  return sum;
}

}  // namespace ductile::sim
