#pragma once

#include <cstdint>

// Products of fp32 matrices, for linear layers.
namespace ductile::nn::kernels {

// Element (i, j) lies at data[i * row + j * column].
struct Matrix {
  const float* data;
  int64_t row, column;

  Matrix transposed() const { return {data, column, row}; }
};

// c[i * c_row + j * c_column] (+)= sum over k of a(i, k) b(k, j), with a [rows, depth] and
// b [depth, cols]. c overlaps neither a nor b.
struct Product {
  Matrix a, b;
  float* c;
  int64_t c_row, c_column;
  int64_t rows, cols, depth;
  bool accumulate;
};

// Whether this processor has the vectors for it; else ATen does the work.
bool product_supported();

// On the OpenMP team of the calling thread. Each element is one chain of fused multiply-adds with k
// ascending, so the bits depend neither on the number of threads nor on the instruction set.
void product(const Product& p);

// to[n, j, i] = from[n, i, j] for `count` matrices [rows, cols], on the OpenMP team of the calling
// thread.
void transpose_each(int64_t count, const float* from, int64_t rows, int64_t cols, float* to);

// sums[j] = the sum over i of m(i, j), with i ascending.
void column_sums(const Matrix& m, int64_t rows, int64_t cols, float* sums);

}  // namespace ductile::nn::kernels
