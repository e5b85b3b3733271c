#pragma once

#include <cstdint>
#include <cstring>

#include "ductile/nn/kernels/conv.h"
#include "ductile/nn/kernels/isa.h"

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

// The gradient of one image, whose pixels count from 0. With a pool it is made here, that of one
// row of windows at a time, in `room`, which has room_of() floats.
class ImageGradient {
 public:
  ImageGradient(const Isa& isa, const GradSource& grad, int64_t image, int64_t pixels,
                int64_t channels, float* room);
  static int64_t room_of(const GradSource& grad);

  // dst[0 .. n * channels) = gradient of pixels [first, first + n), which lie in one row. It goes
  // to where gradients are kept as well.
  void load(int64_t first, int64_t n, float* dst);

 private:
  void make_row(int64_t row);

  const Isa& isa_;
  const GradSource& all_;
  const int64_t first_pixel_, channels_;
  GradSource own_;  // of the image, or of a row of windows
  MaxPool windows_{};
  int64_t row_ = -1;  // of windows, that was made last
  float* room_;
};

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
