#include <algorithm>
#include <cmath>

#include "ductile/optim/kernels_impl.h"
#include "ductile/optim/newton_schulz_impl.h"

namespace ductile::optim {
namespace {

using kernels::kTileColumns;
using kernels::kTileRows;

constexpr int64_t kDepth = 256;  // of a tile's panels: both stay in the first cache

int64_t panels_of(int64_t n, int64_t width) { return (n + width - 1) / width; }

// Panels of `width` rows of the matrix, each column after column; rows past its end are zero.
AlignedArray<float> pack(const MatrixView& x, int64_t width) {
  const int64_t count = panels_of(x.rows, width);
  AlignedArray<float> out(count * width * x.columns);
  float* const to = out.data();
#pragma omp parallel for schedule(static) if (x.rows * x.columns > (1 << 15))
  for (int64_t panel = 0; panel < count; ++panel) {
    const int64_t rows = std::min(width, x.rows - panel * width);
    for (int64_t k = 0; k < x.columns; ++k) {
      for (int64_t i = 0; i < rows; ++i) {
        to[(panel * x.columns + k) * width + i] =
            x.data[(panel * width + i) * x.row_stride + k * x.column_stride];
      }
    }
  }
  return out;
}

double norm_of(std::span<const float> x) {
  const auto& kernels = kernels::best();
  const auto size = static_cast<int64_t>(x.size());
  constexpr int64_t kPart = 16384;
  double squares = 0;
  for (int64_t i = 0; i < size; i += kPart) {
    squares += kernels.sum_squares(x.data() + i, std::min(kPart, size - i));
  }
  return std::sqrt(squares);
}

}  // namespace

void multiply(const MatrixView& a, const MatrixView& b, std::span<float> out) {
  const auto& kernels = kernels::best();
  const int64_t rows = a.rows, columns = b.columns, depth = a.columns;
  const AlignedArray<float> left = pack(a, kTileRows);
  const AlignedArray<float> right = pack(b.transposed(), kTileColumns);
  const int64_t row_panels = panels_of(rows, kTileRows);
  const int64_t column_panels = panels_of(columns, kTileColumns);
  // Columns of `out` that lie in one panel, with rows to spare for the last tile.
#pragma omp parallel for schedule(dynamic, 1) if (rows * columns * depth > (1 << 18))
  for (int64_t j = 0; j < column_panels; ++j) {
    AlignedArray<float> part(row_panels * kTileRows * kTileColumns);
    for (int64_t k = 0; k < depth; k += kDepth) {
      const int64_t n = std::min(kDepth, depth - k);
      for (int64_t i = 0; i < row_panels; ++i) {
        kernels.tile(part.data() + i * kTileRows * kTileColumns, kTileColumns,
                     left.data() + (i * depth + k) * kTileRows,
                     right.data() + (j * depth + k) * kTileColumns, n);
      }
    }
    const int64_t width = std::min(kTileColumns, columns - j * kTileColumns);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(part.data() + i * kTileColumns, width,
                  out.data() + i * columns + j * kTileColumns);
    }
  }
}

void orthogonalize(std::span<float> matrix, int64_t rows, const NewtonSchulz& how) {
  const auto& kernels = kernels::best();
  const auto size = static_cast<int64_t>(matrix.size());
  const int64_t columns = size / rows;
  const float scale = static_cast<float>(1 / (norm_of(matrix) + static_cast<double>(how.eps)));
  kernels.blend(matrix.data(), scale, matrix.data(), 0, matrix.data(), size);
  // X is the matrix with the shorter side as its rows.
  MatrixView x{matrix.data(), rows, columns, columns, 1};
  const bool tall = rows > columns;
  if (tall) x = x.transposed();
  const int64_t side = x.rows;
  const auto [a, b, c] = how.coefficients;
  AlignedArray<float> gram(side * side), square(side * side), change(size);
  const MatrixView gram_view{gram.data(), side, side, side, 1};
  for (int64_t step = 0; step < how.steps; ++step) {
    multiply(x, x.transposed(), gram.span());
    multiply(gram_view, gram_view, square.span());
    kernels.blend(gram.data(), b, gram.data(), c, square.data(), side * side);
    if (tall) {  // X' (b A + c A^2), since that is symmetric
      multiply(x.transposed(), gram_view, change.span());
    } else {
      multiply(gram_view, x, change.span());
    }
    kernels.blend(matrix.data(), a, matrix.data(), 1, change.data(), size);
  }
}

}  // namespace ductile::optim
