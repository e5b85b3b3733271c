#pragma once

#include <cstdint>
#include <span>
#include <vector>

// Arithmetic on vectors of weights, in double and in a fixed order of additions: the same bits on
// every machine. Spans of one call have equal lengths.
namespace ductile::minima {

double dot(std::span<const float> a, std::span<const float> b);
double norm(std::span<const float> a);
// a += factor * b
void add(std::span<float> a, double factor, std::span<const float> b);

// A unit vector of a random direction.
std::vector<float> random_direction(int64_t size, uint64_t seed, uint64_t stream);

// All eigenvalues of a symmetric matrix (rows of values), and the eigenvectors: vectors[i] belongs
// to values[i] and has length 1. Not sorted. For small matrices: it takes some 20 n^3 operations.
struct Eigen {
  std::vector<double> values;
  std::vector<std::vector<double>> vectors;
};
Eigen symmetric_eigen(std::vector<std::vector<double>> matrix);

}  // namespace ductile::minima
