#pragma once

#include <cstdint>
#include <cstring>

#include "ductile/nn/kernels/conv.h"

// What the two ways to convolve share.
namespace ductile::nn::kernels {

// A copy of an image with a border of zeros: `rows` x `cols` pixels, the image's own first
// pixel at (border, border).
struct Padded {
  int64_t rows, cols, border, channels;
  int64_t row() const { return cols * channels; }
  int64_t floats() const { return rows * row(); }
};

// load(first, n, dst) writes the n pixels from pixel `first` of the image on.
template <class T, class Load>
void fill_padded(const Padded& p, int64_t height, int64_t width, T* dst, const Load& load) {
  const int64_t left = p.border * p.channels, right = (p.cols - p.border - width) * p.channels;
  for (int64_t r = 0; r < p.rows; ++r, dst += p.row()) {
    if (r < p.border || r >= p.border + height) {
      std::memset(dst, 0, p.row() * sizeof(T));
      continue;
    }
    std::memset(dst, 0, left * sizeof(T));
    load((r - p.border) * width, width, dst + left);
    std::memset(dst + left + width * p.channels, 0, right * sizeof(T));
  }
}

// Part p of `parts` equal parts of n things starts here.
inline int64_t part_begin(int64_t n, int64_t p, int64_t parts) { return n * p / parts; }

// Joins the moments of groups in order, in double. means and m2s: [groups, channels].
void join_moments(const float* means, const float* m2s, const int64_t* counts, int64_t groups,
                  int64_t channels, float* mean, float* variance);

// The source of one image, whose pixels count from 0: with a pool the gradient in front of it, made
// in `room`, which has room_of_image() floats.
int64_t room_of_image(const GradSource& grad);
GradSource of_image(const GradSource& grad, int64_t image, int64_t pixels, int64_t channels,
                    float* room);

// n pixels of such a source from `pixel` on, into dst and to where they are kept.
void make_gradient(const Isa& isa, const GradSource& own, int64_t pixel, int64_t n,
                   int64_t channels, float* dst);

bool winograd_supported(const ConvShape& shape);
void winograd_forward(const ConvShape& shape, const void* x, const float* weight, Storage storage,
                      void* y, float* mean, float* variance);
void winograd_backward(const ConvShape& shape, const void* x, const float* weight,
                       const GradSource& grad, void* dx, float* dw);

void direct_forward(const ConvShape& shape, const void* x, const float* weight, Storage storage,
                    void* y, float* mean, float* variance);
void direct_backward(const ConvShape& shape, const void* x, const float* weight,
                     const GradSource& grad, void* dx, float* dw);

}  // namespace ductile::nn::kernels
