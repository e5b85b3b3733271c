#include "ductile/nn/whitening.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <ATen/ops/empty.h>

namespace ductile::nn {
namespace {

// A symmetric matrix, row after row.
struct Square {
  explicit Square(int64_t side) : n(side), values(static_cast<size_t>(side * side)) {}
  double& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * n + j)]; }

  int64_t n;
  std::vector<double> values;
};

// The sum of x x' over the patches of one image [C, H, W].
void add_patches(const float* image, int64_t channels, int64_t height, int64_t width,
                 int64_t kernel, Square& sum) {
  std::vector<double> patch(static_cast<size_t>(sum.n));
  for (int64_t i = 0; i + kernel <= height; ++i) {
    for (int64_t j = 0; j + kernel <= width; ++j) {
      size_t at = 0;
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t r = 0; r < kernel; ++r) {
          const float* const row = image + (c * height + i + r) * width + j;
          for (int64_t q = 0; q < kernel; ++q) patch[at++] = row[q];
        }
      }
      for (int64_t a = 0; a < sum.n; ++a) {
        for (int64_t b = a; b < sum.n; ++b) {
          sum.at(a, b) += patch[static_cast<size_t>(a)] * patch[static_cast<size_t>(b)];
        }
      }
    }
  }
}

// Sums of fixed parts of the images, added in their order.
Square second_moments(const at::Tensor& images, int64_t kernel) {
  const int64_t count = images.size(0), channels = images.size(1);
  const int64_t height = images.size(2), width = images.size(3), side = channels * kernel * kernel;
  constexpr int64_t kImages = 64;
  const int64_t num_parts = (count + kImages - 1) / kImages;
  std::vector<Square> parts(static_cast<size_t>(num_parts), Square(side));
  const float* const pixels = images.data_ptr<float>();
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t p = 0; p < num_parts; ++p) {
    for (int64_t n = p * kImages; n < std::min(count, (p + 1) * kImages); ++n) {
      add_patches(pixels + n * channels * height * width, channels, height, width, kernel,
                  parts[static_cast<size_t>(p)]);
    }
  }
  Square mean(side);
  const auto patches = static_cast<double>(count * (height - kernel + 1) * (width - kernel + 1));
  for (Square& part : parts) {
    for (size_t i = 0; i < mean.values.size(); ++i) mean.values[i] += part.values[i] / patches;
  }
  for (int64_t a = 0; a < side; ++a) {
    for (int64_t b = 0; b < a; ++b) mean.at(a, b) = mean.at(b, a);
  }
  return mean;
}

// Jacobi's method: rotations bring the matrix to a diagonal of eigenvalues, and the columns of
// `vectors` to its eigenvectors.
void diagonalize(Square& m, Square& vectors) {
  const int64_t n = m.n;
  for (int64_t i = 0; i < n; ++i) vectors.at(i, i) = 1;
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0, diagonal = 0;
    for (int64_t i = 0; i < n; ++i) {
      diagonal += m.at(i, i) * m.at(i, i);
      for (int64_t j = 0; j < i; ++j) off += m.at(i, j) * m.at(i, j);
    }
    if (off <= 1e-30 * diagonal) return;
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        if (m.at(p, q) == 0) continue;
        const double theta = (m.at(q, q) - m.at(p, p)) / (2 * m.at(p, q));
        const double t = (theta >= 0 ? 1 : -1) / (std::fabs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        for (int64_t k = 0; k < n; ++k) {
          const double x = m.at(k, p), y = m.at(k, q);
          m.at(k, p) = c * x - s * y;
          m.at(k, q) = s * x + c * y;
        }
        for (int64_t k = 0; k < n; ++k) {
          const double x = m.at(p, k), y = m.at(q, k);
          m.at(p, k) = c * x - s * y;
          m.at(q, k) = s * x + c * y;
        }
        for (int64_t k = 0; k < n; ++k) {
          const double x = vectors.at(k, p), y = vectors.at(k, q);
          vectors.at(k, p) = c * x - s * y;
          vectors.at(k, q) = s * x + c * y;
        }
      }
    }
  }
}

}  // namespace

at::Tensor whitening_filters(const at::Tensor& images, int64_t kernel, double eps) {
  Square moments = second_moments(images.to(at::kFloat).contiguous(), kernel);
  const int64_t side = moments.n;
  Square vectors(side);
  diagonalize(moments, vectors);
  std::vector<int64_t> order(static_cast<size_t>(side));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int64_t i) { return moments.at(i, i); });
  at::Tensor filters = at::empty({2 * side, images.size(1), kernel, kernel}, at::kFloat);
  float* const out = filters.data_ptr<float>();
  for (int64_t f = 0; f < side; ++f) {
    const int64_t which = order[static_cast<size_t>(f)];
    const double scale = 1 / std::sqrt(std::max(moments.at(which, which), 0.0) + eps);
    for (int64_t i = 0; i < side; ++i) {
      const auto value = static_cast<float>(vectors.at(i, which) * scale);
      out[f * side + i] = value;
      out[(side + f) * side + i] = -value;
    }
  }
  return filters;
}

}  // namespace ductile::nn
