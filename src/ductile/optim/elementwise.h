#pragma once

#include <cstdint>
#include <span>
#include <vector>

// Arithmetic of the step loop on whole flat fp32 buffers. The spans of one call have equal lengths
// (otherwise it throws invalid_argument) and do not overlap. Work is spread over the OpenMP team.
// Results have the same bits for every number of threads and every instruction set.
namespace ductile::optim {

// a += b: one node of the canonical gradient tree.
void add_into(std::span<float> a, std::span<const float> b);

// fp32 <-> 16-bit floats in raw words. Narrowing rounds to nearest even, overflows to infinity,
// keeps subnormals and turns any NaN into a quiet NaN of the same sign. Widening is exact.
void to_bf16(std::span<uint16_t> out, std::span<const float> in);
void from_bf16(std::span<float> out, std::span<const uint16_t> in);
void to_f16(std::span<uint16_t> out, std::span<const float> in);
void from_f16(std::span<float> out, std::span<const uint16_t> in);

// The 2-norm, accumulated in double in a fixed order: blocks of 16,384 elements, then the sums of
// these blocks in order. It is not finite exactly if some element is not finite, so it also serves
// as the test for overflow.
double gradient_norm(std::span<const float> gradient);

// The same in two parts, for a gradient that is spread over workers: the sum of squares of each
// block of 16,384 elements (the last one may be shorter), and the norm computed from the sums of
// all blocks in order.
std::vector<double> block_square_sums(std::span<const float> values);
double norm_of_block_sums(std::span<const double> sums);

// The factor that brings `norm` down to `max_norm`, as torch's clip_grad_norm_:
// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0 (no clipping).
double clip_factor(double norm, double max_norm);

}  // namespace ductile::optim
