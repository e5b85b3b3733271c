#include "ductile/minima/slices.h"

#include <cmath>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/minima/testing/surfaces.h"
#include "ductile/minima/vectors.h"

namespace ductile::minima {
namespace {

using testing::Quadratic;

// Three filters of unequal norms, one of them zero, and weights between them.
Quadratic surface_with_filters() {
  testing::Matrix h(12, std::vector<double>(12));
  for (size_t i = 0; i < 12; ++i) h[i][i] = 1.0 + static_cast<double>(i);
  std::vector<float> x = {1, 2, 3, 0.5f, 0, 0, 7, -8, 1e-3f, 2e-3f, 0, 9};
  Quadratic out(h, x, {x.begin(), x.end()});
  out.filter_list = {{0, 3}, {4, 2}, {6, 4}};
  return out;
}

TEST(FilterNormalisedDirection, HasTheNormsOfTheFilters) {
  const Quadratic surface = surface_with_filters();
  for (const uint64_t number : {0, 1, 2}) {
    const std::vector<float> d = filter_normalised_direction(surface, 3, number);
    for (const Filter& f : surface.filters()) {
      const auto at = static_cast<size_t>(f.offset), size = static_cast<size_t>(f.size);
      EXPECT_NEAR(norm(std::span(d).subspan(at, size)), norm(surface.weights().subspan(at, size)),
                  1e-5);
    }
    for (const size_t i : {3, 10, 11}) EXPECT_EQ(d[i], 0) << "of no filter";
  }
}

TEST(FilterNormalisedDirection, DependsOnSeedAndNumber) {
  const Quadratic surface = surface_with_filters();
  const auto d = [&](uint64_t seed, uint64_t number) {
    return filter_normalised_direction(surface, seed, number);
  };
  EXPECT_EQ(d(1, 0), d(1, 0));
  EXPECT_NE(d(1, 0), d(1, 1));
  EXPECT_NE(d(1, 0), d(2, 0));
}

// A layer that keeps its matrix as [inputs, outputs] has the same direction as one that keeps the
// transpose.
TEST(FilterNormalisedDirection, OfColumnsIsTheTransposeOfThatOfRows) {
  constexpr size_t kIn = 4, kOut = 3;
  const auto surface_of = [](const std::vector<float>& x) {
    return Quadratic(testing::Matrix(x.size(), std::vector<double>(x.size())), x,
                     std::vector<double>(x.size()));
  };
  std::vector<float> rows, columns(kIn * kOut);
  for (size_t i = 0; i < kIn * kOut; ++i) rows.push_back(static_cast<float>(i * i) - 7);
  for (size_t out = 0; out < kOut; ++out) {
    for (size_t in = 0; in < kIn; ++in) columns[in * kOut + out] = rows[out * kIn + in];
  }
  Quadratic plain = surface_of(rows), transposed = surface_of(columns);
  for (int64_t out = 0; out < int64_t{kOut}; ++out) {
    plain.filter_list.push_back({out * int64_t{kIn}, kIn});
    transposed.filter_list.push_back({out, kIn, kOut});
  }
  const auto a = filter_normalised_direction(plain, 2, 1),
             b = filter_normalised_direction(transposed, 2, 1);
  for (size_t out = 0; out < kOut; ++out) {
    for (size_t in = 0; in < kIn; ++in) EXPECT_EQ(a[out * kIn + in], b[in * kOut + out]);
  }
}

// A filter that is ten times as large moves ten times as far.
TEST(FilterNormalisedDirection, ScalesWithTheFilter) {
  Quadratic small({{1, 0}, {0, 1}}, {0.3f, 0.4f}, {0, 0}), large({{1, 0}, {0, 1}}, {3, 4}, {0, 0});
  small.filter_list = large.filter_list = {{0, 2}};
  const auto a = filter_normalised_direction(small, 1, 0),
             b = filter_normalised_direction(large, 1, 0);
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(10 * a[i], b[i], 1e-5);
}

TEST(Slices, OfLinesAreLossesAlongTheDirections) {
  Quadratic surface = surface_with_filters();
  const Slices got = slice_lines(surface, 5);
  ASSERT_EQ(got.losses.size(), static_cast<size_t>(kLines));
  ASSERT_EQ(got.places.size(), static_cast<size_t>(kLinePlaces));
  EXPECT_EQ(got.places.front(), -1);
  EXPECT_EQ(got.places[kLinePlaces / 2], 0);
  EXPECT_EQ(got.places.back(), 1);
  for (size_t line = 0; line < got.losses.size(); ++line) {
    const auto d = filter_normalised_direction(surface, 5, line);
    for (size_t i = 0; i < got.places.size(); ++i) {
      double want = 0.5;
      for (size_t k = 0; k < d.size(); ++k)
        want += std::pow(got.places[i] * d[k], 2) * (1.0 + static_cast<double>(k)) / 2;
      EXPECT_NEAR(got.losses[line][i], want, 1e-4 * want);
    }
    EXPECT_EQ(got.losses[line][kLinePlaces / 2], surface.loss(surface.weights()));
  }
}

TEST(Slices, OfAPlaneCrossTheLinesInItsMiddle) {
  Quadratic surface = surface_with_filters();
  const Slices plane = slice_plane(surface, 5), lines = slice_lines(surface, 5);
  ASSERT_EQ(plane.losses.size(), static_cast<size_t>(kPlanePlaces));
  const size_t middle = kPlanePlaces / 2;
  for (size_t i = 0; i < plane.places.size(); ++i) {
    ASSERT_EQ(plane.losses[i].size(), plane.places.size());
    // Every second place of the lines is one of the plane.
    EXPECT_DOUBLE_EQ(plane.places[i], lines.places[2 * i]);
    EXPECT_NEAR(plane.losses[middle][i], lines.losses[0][2 * i], 1e-5);
    EXPECT_NEAR(plane.losses[i][middle], lines.losses[1][2 * i], 1e-5);
  }
}

}  // namespace
}  // namespace ductile::minima
