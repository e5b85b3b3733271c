#include "ductile/nn/kernels/product.h"

#include <cmath>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "ductile/nn/kernels/test_data.h"

namespace ductile::nn::kernels {
namespace {

// How the elements of an operand lie: rows together, columns together, or with gaps.
enum class Layout { by_row, by_column, spaced };

struct Operand {
  Operand(uint64_t stream, int64_t rows, int64_t cols, Layout layout) {
    const int64_t gap = layout == Layout::spaced ? 3 : 1;
    view.row = layout == Layout::by_column ? 1 : cols * gap + (gap - 1);
    view.column = layout == Layout::by_column ? rows : gap;
    values = normals(stream, (rows - 1) * view.row + (cols - 1) * view.column + 1);
    view.data = values.data();
  }
  std::vector<float> values;
  Matrix view{};
};

struct Size {
  int64_t rows, cols, depth;
};

class Products : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!product_supported()) GTEST_SKIP() << "this processor has no AVX2: ATen does the work";
  }

  // The chain of multiply-adds that the header promises, one element at a time.
  static std::vector<float> twin(const Operand& a, const Operand& b, const Size& s,
                                 std::vector<float> c, int64_t c_row, bool accumulate) {
    for (int64_t i = 0; i < s.rows; ++i) {
      for (int64_t j = 0; j < s.cols; ++j) {
        float sum = accumulate ? c[i * c_row + j] : 0;
        for (int64_t k = 0; k < s.depth; ++k)
          sum = std::fma(a.view.data[i * a.view.row + k * a.view.column],
                         b.view.data[k * b.view.row + j * b.view.column], sum);
        c[i * c_row + j] = sum;
      }
    }
    return c;
  }

  static void expect_twin(const Size& s, Layout left, Layout right, bool accumulate) {
    const Operand a(1, s.rows, s.depth, left), b(2, s.depth, s.cols, right);
    const int64_t c_row = s.cols + 5;
    const std::vector<float> before = normals(3, s.rows * c_row);
    const std::vector<float> want = twin(a, b, s, before, c_row, accumulate);
    for (const int threads : {1, 2, 3}) {
      omp_set_num_threads(threads);
      std::vector<float> got = before;
      product({a.view, b.view, got.data(), c_row, 1, s.rows, s.cols, s.depth, accumulate});
      EXPECT_EQ(got, want) << s.rows << " x " << s.cols << " over " << s.depth << ", layouts "
                           << static_cast<int>(left) << static_cast<int>(right) << ", " << threads
                           << " threads";
    }
    omp_set_num_threads(1);
  }
};

TEST_F(Products, EqualTheChainOfMultiplyAddsToTheBit) {
  constexpr Layout kLayouts[] = {Layout::by_row, Layout::by_column, Layout::spaced};
  // Whole blocks, one more and one less than whole panels and groups, single rows and columns.
  const std::vector<Size> sizes = {{1, 1, 1},    {1, 33, 7},    {12, 32, 192}, {13, 31, 193},
                                   {25, 65, 5},  {97, 10, 400}, {64, 130, 33}, {4, 513, 200},
                                   {769, 40, 3}, {2, 8, 1000}};
  for (const Size& s : sizes)
    for (const Layout left : kLayouts)
      for (const Layout right : kLayouts)
        for (const bool accumulate : {false, true}) expect_twin(s, left, right, accumulate);
}

// Large enough for a team: all of the depth packed at once, and too deep for that; two sets of
// rows, and two of columns.
TEST_F(Products, OfATeamEqualTheChainToTheBit) {
  for (const Size& s : {Size{40, 41, 800}, Size{24, 25, 2100}, Size{800, 40, 40},
                        Size{40, 100, 300}, Size{30, 1100, 40}})
    for (const Layout left : {Layout::by_row, Layout::by_column})
      for (const Layout right : {Layout::by_row, Layout::by_column})
        expect_twin(s, left, right, left == right);
}

TEST_F(Products, AnyShapeEqualsTheChain) {
  Rng rng(5, 6);
  for (int i = 0; i < 60; ++i) {
    const auto layout = [&] { return static_cast<Layout>(rng.below(3)); };
    const auto size = [&](int64_t most) { return 1 + static_cast<int64_t>(rng.below(most)); };
    expect_twin({size(120), size(120), size(420)}, layout(), layout(), rng.below(2) == 0);
  }
}

TEST_F(Products, WithoutDepthAreZeroOrWhatWasThere) {
  std::vector<float> c(6, 7.0F);
  Product p{{nullptr, 0, 0}, {nullptr, 0, 0}, c.data(), 3, 1, 2, 3, 0, true};
  product(p);
  EXPECT_EQ(c, std::vector<float>(6, 7.0F));
  p.accumulate = false;
  product(p);
  EXPECT_EQ(c, std::vector<float>(6, 0.0F));
  p.rows = 0;
  product(p);
}

// A NaN or an infinity reaches the elements of its row and column, and no others.
TEST_F(Products, NotANumberStaysInItsRowAndColumn) {
  const Size s{14, 35, 9};
  Operand a(1, s.rows, s.depth, Layout::by_row), b(2, s.depth, s.cols, Layout::by_row);
  a.values[3 * s.depth + 4] = NAN;
  b.values[2 * s.cols + 34] = INFINITY;
  std::vector<float> c(s.rows * s.cols);
  product({a.view, b.view, c.data(), s.cols, 1, s.rows, s.cols, s.depth, false});
  for (int64_t i = 0; i < s.rows; ++i)
    for (int64_t j = 0; j < s.cols; ++j)
      EXPECT_EQ(std::isfinite(c[i * s.cols + j]), i != 3 && j != 34) << i << " " << j;
}

TEST(TransposeEach, TurnsEveryMatrix) {
  for (const auto& [count, rows, cols] :
       {std::tuple{1, 1, 1}, {3, 4, 8}, {5, 49, 32}, {2, 7, 3}, {64, 33, 50}}) {
    const int64_t size = int64_t{rows} * cols;
    std::vector<float> from(count * size), to(count * size, -1), want(count * size);
    for (int64_t i = 0; i < count * size; ++i) from[i] = static_cast<float>(i);
    for (int64_t n = 0; n < count; ++n)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j)
          want[n * size + j * rows + i] = from[n * size + i * cols + j];
    transpose_each(count, from.data(), rows, cols, to.data());
    EXPECT_EQ(to, want) << rows << " x " << cols;
  }
}

TEST(ColumnSums, AreThoseOfTheRowsInOrder) {
  for (const Layout layout : {Layout::by_row, Layout::by_column, Layout::spaced}) {
    const Operand m(4, 50, 7, layout);
    std::vector<float> got(7, -1), want(7, 0);
    for (int64_t i = 0; i < 50; ++i)
      for (int64_t j = 0; j < 7; ++j) want[j] += m.view.data[i * m.view.row + j * m.view.column];
    column_sums(m.view, 50, 7, got.data());
    EXPECT_EQ(got, want);
  }
}

}  // namespace
}  // namespace ductile::nn::kernels
