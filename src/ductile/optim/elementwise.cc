#include "ductile/optim/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ductile/base/error.h"
#include "ductile/optim/kernels_impl.h"

namespace ductile::optim {
namespace {

constexpr int64_t kBlock = 16384;

// Calls visit(begin, size) for each block of n elements.
template <class Visit>
void for_blocks(int64_t n, const Visit& visit) {
  const int64_t num_blocks = (n + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(dynamic, 1) if (num_blocks > 2)
  for (int64_t b = 0; b < num_blocks; ++b) {
    visit(b * kBlock, std::min(kBlock, n - b * kBlock));
  }
}

int64_t same_length(size_t a, size_t b) {
  if (a != b) fail(ErrorCode::invalid_argument, "buffers of {} and {} elements do not match", a, b);
  return static_cast<int64_t>(a);
}

template <class To, class From, class Kernel>
void convert(std::span<To> out, std::span<const From> in, Kernel kernel) {
  for_blocks(same_length(out.size(), in.size()),
             [&](int64_t i, int64_t n) { kernel(out.data() + i, in.data() + i, n); });
}

}  // namespace

void add_into(std::span<float> a, std::span<const float> b) { convert(a, b, kernels::best().add); }

void to_bf16(std::span<uint16_t> out, std::span<const float> in) {
  convert(out, in, kernels::best().to_bf16);
}
void from_bf16(std::span<float> out, std::span<const uint16_t> in) {
  convert(out, in, kernels::best().from_bf16);
}
void to_f16(std::span<uint16_t> out, std::span<const float> in) {
  convert(out, in, kernels::best().to_f16);
}
void from_f16(std::span<float> out, std::span<const uint16_t> in) {
  convert(out, in, kernels::best().from_f16);
}

std::vector<double> block_square_sums(std::span<const float> values) {
  const int64_t n = static_cast<int64_t>(values.size());
  std::vector<double> sums(static_cast<size_t>((n + kBlock - 1) / kBlock));
  for_blocks(n, [&](int64_t i, int64_t size) {
    sums[static_cast<size_t>(i / kBlock)] = kernels::best().sum_squares(values.data() + i, size);
  });
  return sums;
}

double norm_of_block_sums(std::span<const double> sums) {
  double total = 0;
  for (double s : sums) total += s;
  return std::sqrt(total);
}

double gradient_norm(std::span<const float> gradient) {
  return norm_of_block_sums(block_square_sums(gradient));
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace ductile::optim
