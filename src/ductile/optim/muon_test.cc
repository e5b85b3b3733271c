#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <omp.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/optim/newton_schulz_impl.h"
#include "ductile/optim/testing/optimizer_twin.h"

namespace ductile::optim {
namespace {

std::vector<float> random_matrix(uint64_t seed, int64_t size) {
  Rng rng(seed);
  std::vector<float> out(static_cast<size_t>(size));
  for (float& x : out) x = rng.normal();
  return out;
}

// Singular values by one-sided Jacobi rotations: the lengths of the columns once they are
// orthogonal.
std::vector<double> singular_values(std::span<const float> matrix, int64_t rows) {
  const auto m = static_cast<size_t>(rows);
  const size_t n = matrix.size() / m;
  if (m < n) {
    std::vector<float> transposed(matrix.size());
    for (size_t i = 0; i < m; ++i) {
      for (size_t j = 0; j < n; ++j) transposed[j * m + i] = matrix[i * n + j];
    }
    return singular_values(transposed, static_cast<int64_t>(n));
  }
  std::vector<double> a(matrix.begin(), matrix.end());
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (size_t i = 0; i < m; ++i) {
          pp += a[i * n + p] * a[i * n + p];
          qq += a[i * n + q] * a[i * n + q];
          pq += a[i * n + p] * a[i * n + q];
        }
        if (std::fabs(pq) < 1e-15 * std::sqrt(pp * qq)) continue;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = (zeta >= 0 ? 1 : -1) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (size_t i = 0; i < m; ++i) {
          const double x = a[i * n + p], y = a[i * n + q];
          a[i * n + p] = c * x - s * y;
          a[i * n + q] = s * x + c * y;
        }
      }
    }
  }
  std::vector<double> out(n);
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = 0; i < m; ++i) out[j] += a[i * n + j] * a[i * n + j];
    out[j] = std::sqrt(out[j]);
  }
  std::ranges::sort(out);
  return out;
}

RC_GTEST_PROP(Matrix, AProductAddsItsTermsInAscendingOrder, (uint64_t seed)) {
  const int64_t rows = *rc::gen::inRange<int64_t>(1, 40);
  const int64_t inner = *rc::gen::inRange<int64_t>(1, 600);
  const int64_t columns = *rc::gen::inRange<int64_t>(1, 50);
  const bool flipped = *rc::gen::arbitrary<bool>();  // a is given as its transpose
  const auto a = random_matrix(seed, rows * inner), b = random_matrix(seed + 1, inner * columns);
  MatrixView left{a.data(), rows, inner, inner, 1};
  if (flipped) left = MatrixView{a.data(), inner, rows, rows, 1}.transposed();
  std::vector<float> out(static_cast<size_t>(rows * columns));
  multiply(left, {b.data(), inner, columns, columns, 1}, out);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < inner; ++k) {
        const float product = a[static_cast<size_t>(flipped ? k * rows + i : i * inner + k)] *
                              b[static_cast<size_t>(k * columns + j)];
        sum += product;
      }
      RC_ASSERT(out[static_cast<size_t>(i * columns + j)] == sum);
    }
  }
}

TEST(NewtonSchulz, BringsSingularValuesIntoThePublishedBounds) {
  for (const auto& [rows, columns] : {std::pair{20, 50}, std::pair{50, 20}, std::pair{64, 27},
                                      std::pair{1, 30}, std::pair{30, 1}}) {
    std::vector<float> x = random_matrix(3, int64_t{rows} * columns);
    orthogonalize(x, rows, {});
    const std::vector<double> values = singular_values(x, rows);
    EXPECT_GE(values.front(), 0.65) << rows << " x " << columns;
    EXPECT_LE(values.back(), 1.25) << rows << " x " << columns;
  }
}

TEST(NewtonSchulz, KeepsTheSingularVectors) {
  // Of a diagonal matrix: each element is the scalar iteration.
  std::vector<float> x(36);
  const std::vector<double> diagonal = {3, -2, 1, 0.5, 0.2, 0.1};
  double norm = 0;
  for (size_t i = 0; i < 6; ++i) {
    x[i * 7] = static_cast<float>(diagonal[i]);
    norm += diagonal[i] * diagonal[i];
  }
  orthogonalize(x, 6, {});
  for (size_t i = 0; i < 6; ++i) {
    double s = diagonal[i] / std::sqrt(norm);
    for (int step = 0; step < 5; ++step) {
      s = 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s;
    }
    for (size_t j = 0; j < 6; ++j) {
      EXPECT_NEAR(x[i * 6 + j], i == j ? s : 0, 1e-5) << i << " " << j;
    }
  }
}

TEST(NewtonSchulz, FollowsItsDoublePrecisionTwinForEveryNumberOfThreads) {
  const int before = omp_get_max_threads();
  for (const auto& [rows, columns] : {std::pair{100, 333}, std::pair{333, 100}}) {
    const std::vector<float> start = random_matrix(5, int64_t{rows} * columns);
    const std::vector<double> abc = {3.4445, -4.7750, 2.0315};
    const testing::Vector want =
        testing::newton_schulz({start.begin(), start.end()}, rows, 5, abc, 1e-7);
    std::vector<float> first;
    for (const int threads : {1, 2, 3}) {
      omp_set_num_threads(threads);
      std::vector<float> x = start;
      orthogonalize(x, rows, {});
      if (first.empty()) first = x;
      EXPECT_EQ(x, first);
    }
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(first[i], want[i], 2e-5);
  }
  omp_set_num_threads(before);
}

TEST(NewtonSchulz, AMatrixOfZerosStaysOne) {
  std::vector<float> x(12);
  orthogonalize(x, 3, {});
  EXPECT_EQ(x, std::vector<float>(12));
}

TEST(Muon, RefusesCoefficientsThatAreNotThree) {
  spec::OptimizerOptions o{.name = "muon"};
  o.muon.coefficients = {1, 2};
  EXPECT_THROW(make_optimizer(o, ParamLayout(o)), Error);
}

// Which parameters are matrices, and that a cut spares each of them.
RC_GTEST_PROP(Muon, EveryMatrixLiesBetweenCutsAndBlocksElsewhereMayBeCut, ()) {
  spec::OptimizerOptions o{.name = "muon"};
  ParamLayout layout(o);
  const int64_t count = *rc::gen::inRange<int64_t>(1, 12);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t rows = *rc::gen::inRange<int64_t>(1, 300);
    const int64_t columns = *rc::gen::inRange<int64_t>(0, 300);
    switch (*rc::gen::inRange(0, 3)) {
      case 0:
        layout.add(fmt::format("{}.weight", i), {rows, columns}, false);
        break;
      case 1:
        layout.add(fmt::format("{}.embed.weight", i), {rows, columns}, false);
        break;
      default:
        layout.add(fmt::format("{}.bias", i), {rows * columns}, false);
    }
  }
  const auto optimizer = make_optimizer(o, layout);
  std::vector<bool> inside(static_cast<size_t>(optimizer->num_blocks()) + 1);
  for (const Segment& s : layout.segments()) {
    RC_ASSERT(s.whole == (s.name.ends_with("weight") && s.size > 0 &&
                          s.name.find("embed") == std::string::npos));
    if (!s.whole) continue;
    const int64_t first = s.offset / Optimizer::kBlock;
    for (int64_t b = first + 1; b * Optimizer::kBlock < s.offset + s.size; ++b) {
      inside[static_cast<size_t>(b)] = true;
    }
  }
  for (int64_t b = 0; b <= optimizer->num_blocks(); ++b) {
    RC_ASSERT(optimizer->may_cut(b) == !inside[static_cast<size_t>(b)]);
  }
}

}  // namespace
}  // namespace ductile::optim
