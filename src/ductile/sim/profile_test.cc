#include "ductile/sim/profile.h"

#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/sim/delaunay.h"

namespace ductile::sim {
namespace {

TEST(Interpolation, LinearBetweenAndHeldBeyond) {
  const std::vector<double> x = {1, 2, 4};
  const std::vector<StepTime> y = {{1, 0}, {3, 1}, {5, 3}};
  EXPECT_EQ(interpolate_linear(x, y, 1.5).step, 2);
  EXPECT_EQ(interpolate_linear(x, y, 3).sync, 2);
  EXPECT_EQ(interpolate_linear(x, y, 0).step, 1);
  EXPECT_EQ(interpolate_linear(x, y, 9).step, 5);
}

struct Cloud {
  std::vector<Point3> points;
  std::vector<StepTime> values;
};

Cloud random_cloud(uint64_t seed, int count, bool plane) {
  Rng rng(seed);
  Cloud cloud;
  for (int i = 0; i < count; ++i) {
    // Whole numbers as in real profiles, far enough apart that no five lie on one sphere.
    const Point3 p = {static_cast<double>(rng.below(100'000)),
                      static_cast<double>(rng.below(100'000)),
                      static_cast<double>(rng.below(100'000))};
    cloud.points.push_back(p);
    cloud.values.push_back(plane ? StepTime{2 + p.nodes - 3 * p.replicas + p.local, p.local}
                                 : StepTime{rng.uniform(0, 1), rng.uniform(0, 1)});
  }
  return cloud;
}

// Slow twin: the first simplex without another point in its sphere that holds the point.
std::optional<StepTime> by_empty_spheres(const Cloud& c, const Point3& at) {
  const int n = static_cast<int>(c.points.size());
  const auto solve = [](double m[4][5]) {
    for (int i = 0; i < 4; ++i) {
      int best = i;
      for (int r = i; r < 4; ++r)
        if (std::abs(m[r][i]) > std::abs(m[best][i])) best = r;
      if (std::abs(m[best][i]) < 1e-9) return false;
      std::swap_ranges(m[i], m[i] + 5, m[best]);
      for (int r = 0; r < 4; ++r) {
        if (r == i) continue;
        const double f = m[r][i] / m[i][i];
        for (int k = 0; k < 5; ++k) m[r][k] -= f * m[i][k];
      }
    }
    return true;
  };
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b)
      for (int d = b + 1; d < n; ++d)
        for (int e = d + 1; e < n; ++e) {
          const int corner[4] = {a, b, d, e};
          double w[4][5], s[4][5];
          for (int k = 0; k < 4; ++k) {
            const Point3& p = c.points[corner[k]];
            w[0][k] = 1, w[1][k] = p.nodes, w[2][k] = p.replicas, w[3][k] = p.local;
            s[k][0] = 1, s[k][1] = p.nodes, s[k][2] = p.replicas, s[k][3] = p.local;
            s[k][4] = p.nodes * p.nodes + p.replicas * p.replicas + p.local * p.local;
          }
          w[0][4] = 1, w[1][4] = at.nodes, w[2][4] = at.replicas, w[3][4] = at.local;
          if (!solve(w) || !solve(s)) continue;
          bool inside = true, empty = true;
          for (int k = 0; k < 4; ++k) inside &= w[k][4] / w[k][k] >= -1e-12;
          if (!inside) continue;
          for (int p = 0; p < n && empty; ++p) {
            if (p == a || p == b || p == d || p == e) continue;
            const Point3& q = c.points[p];
            const double plane = s[0][4] / s[0][0] + s[1][4] / s[1][1] * q.nodes +
                                 s[2][4] / s[2][2] * q.replicas + s[3][4] / s[3][3] * q.local;
            empty = q.nodes * q.nodes + q.replicas * q.replicas + q.local * q.local > plane - 1e-3;
          }
          if (!empty) continue;
          StepTime sum;
          for (int k = 0; k < 4; ++k) {
            sum.step += w[k][4] / w[k][k] * c.values[corner[k]].step;
            sum.sync += w[k][4] / w[k][k] * c.values[corner[k]].sync;
          }
          return sum;
        }
  return std::nullopt;
}

RC_GTEST_PROP(Interpolation, DelaunayIsTheTriangulationOfEmptySpheres, ()) {
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  const Cloud cloud = random_cloud(seed, 14, false);
  const Delaunay built(cloud.points, cloud.values);
  Rng rng(seed, 1);
  for (int i = 0; i < 5; ++i) {
    const Point3 at = {rng.uniform(0, 1e5), rng.uniform(0, 1e5), rng.uniform(0, 1e5)};
    const auto slow = by_empty_spheres(cloud, at), fast = built.at(at);
    RC_ASSERT(slow.has_value() == fast.has_value());
    if (!slow) continue;
    RC_ASSERT(std::abs(slow->step - fast->step) < 1e-6);
    RC_ASSERT(std::abs(slow->sync - fast->sync) < 1e-6);
  }
}

TEST(Interpolation, DelaunayReproducesAPlane) {
  const Cloud cloud = random_cloud(9, 40, true);
  const Delaunay built(cloud.points, cloud.values);
  const Point3 at = {50'000, 48'000, 51'000};
  EXPECT_NEAR(built.at(at)->step, 2 + at.nodes - 3 * at.replicas + at.local, 1e-3);
  EXPECT_FALSE(built.at({-1, 0, 0}));
}

TEST(Profile, ReadsTablesWhateverTheOrderOfColumns) {
  TempFolder folder;
  write_file_atomic(folder.path() / "p.csv",
                    "local_bsz,step_time,sync_time,placement\n16,0.4,0.1,12\n8,0.2,0.1,12\n"
                    "8,0.1,0,1\n32,0.3,0,1\n");
  const Profile profile = Profile::read(folder.path() / "p.csv", folder.path() / "none.csv");
  EXPECT_NEAR(profile.at(std::vector<int32_t>{1, 2}, 12).step, 0.3, 1e-12);
  // Ranks form a ring: a rotation is the same placement.
  EXPECT_NEAR(profile.at(std::vector<int32_t>{2, 1}, 12).step, 0.3, 1e-12);
  EXPECT_EQ(profile.min_local(), 8);
  EXPECT_EQ(profile.max_local(), 32);
  EXPECT_EQ(profile.max_local(std::vector<int32_t>{2, 1}), 16);
  EXPECT_EQ(profile.max_local_of_replicas(3), 16);
  EXPECT_FALSE(profile.max_local_of_replicas(4));
  EXPECT_NEAR(profile.unit_rate(), 32 / 0.3, 1e-9);
  write_file_atomic(folder.path() / "bad.csv",
                    "placement,local_bsz,step_time,sync_time\n1x,8,1,0\n");
  try {
    Profile::read(folder.path() / "bad.csv", folder.path() / "none.csv");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("bad.csv:2: column 'placement'"), std::string::npos) << e.message();
  }
}

}  // namespace
}  // namespace ductile::sim
