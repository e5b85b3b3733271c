#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ductile/base/aligned_array.h"

// Products of fp32 matrices and the orthogonalisation that Muon is made of. The result has the same
// bits for every number of OpenMP threads and every instruction set: each element of a product adds
// its terms in ascending order, each rounded.
namespace ductile::optim {

// A matrix for reading: element (i, j) is data[i * row_stride + j * column_stride].
struct MatrixView {
  const float* data;
  int64_t rows, columns;
  int64_t row_stride, column_stride;

  MatrixView transposed() const { return {data, columns, rows, column_stride, row_stride}; }
};

// out = a b, row after row. Memory is taken for copies of a and b.
void multiply(const MatrixView& a, const MatrixView& b, std::span<float> out);

struct NewtonSchulz {
  int64_t steps = 5;
  // Of a step X <- a X + b (X X') X + c (X X')^2 X. These five steps bring the singular values of a
  // matrix of norm 1 to about 0.7 to 1.2 (Jordan et al., "Muon: an optimizer for hidden layers in
  // neural networks", 2024), if none of them is much below 0.01.
  std::array<float, 3> coefficients = {3.4445F, -4.7750F, 2.0315F};
  float eps = 1e-7F;  // above 0; added to the norm by which the matrix is divided at first
};

// Replaces the matrix by one with the same singular vectors and singular values near 1. A matrix of
// zeros stays one.
void orthogonalize(std::span<float> matrix, int64_t rows, const NewtonSchulz& how);

}  // namespace ductile::optim
