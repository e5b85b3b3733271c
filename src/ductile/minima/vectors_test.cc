#include "ductile/minima/vectors.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/minima/testing/surfaces.h"

namespace ductile::minima {
namespace {

TEST(Vectors, SumsAreThoseOfASlowLoop) {
  for (const int64_t size : {1, 7, 8, 9, 1000, 1003}) {
    const std::vector<float> a = random_direction(size, 1, 1), b = random_direction(size, 1, 2);
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    EXPECT_NEAR(dot(a, b), sum, 1e-12);
    EXPECT_NEAR(norm(a), 1, 1e-6);
  }
  std::vector<float> c = {1, 2};
  add(c, -0.5, std::vector<float>{2, 8});
  EXPECT_EQ(c, (std::vector<float>{0, -2}));
}

TEST(SymmetricEigen, FindsTheValuesThatAMatrixWasMadeOf) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::vector<double> want = {-3, -1e-3, 0, 0, 1, 1, 5, 700};
    const testing::Matrix h = testing::with_eigenvalues(want, seed);
    const Eigen got = symmetric_eigen(h);
    for (size_t i = 0; i < h.size(); ++i) {  // H v = value v, |v| = 1
      double square = 0;
      for (size_t row = 0; row < h.size(); ++row) {
        double image = 0;
        for (size_t j = 0; j < h.size(); ++j) image += h[row][j] * got.vectors[i][j];
        EXPECT_NEAR(image, got.values[i] * got.vectors[i][row], 1e-10);
        square += got.vectors[i][row] * got.vectors[i][row];
      }
      EXPECT_NEAR(square, 1, 1e-12);
    }
    std::vector<double> values = got.values;
    std::ranges::sort(values);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], 1e-10);
  }
}

TEST(SymmetricEigen, TakesMatricesThatAreDiagonalOrZero) {
  EXPECT_EQ(symmetric_eigen({{4}}).values, (std::vector<double>{4}));
  EXPECT_EQ(symmetric_eigen({{0, 0}, {0, 0}}).values, (std::vector<double>{0, 0}));
  EXPECT_EQ(symmetric_eigen({{2, 0}, {0, -1}}).values, (std::vector<double>{2, -1}));
}

}  // namespace
}  // namespace ductile::minima
