#include "ductile/nn/kernels/conv.h"

#include <cstring>
#include <vector>

#include "ductile/nn/kernels/conv_impl.h"
#include "ductile/nn/kernels/pool.h"

namespace ductile::nn::kernels {

bool conv_supported(const ConvShape& s) {
  return s.batch > 0 && s.in > 0 && s.stride >= 1 && s.padding >= 0 && s.padding < s.kernel &&
         s.height + 2 * s.padding >= s.kernel && s.width + 2 * s.padding >= s.kernel &&
         isa_for(s.out) != nullptr;
}

bool conv_preferred(const ConvShape& s) {
  if (!conv_supported(s)) return false;
  const int64_t pairs = s.in * s.out;
  if (winograd_supported(s)) {
    const int64_t each = ((s.out_height() + 3) / 4) * ((s.out_width() + 3) / 4);
    return pairs <= 256 * 256 || (pairs <= 512 * 512 && s.batch * each >= 64 && each <= 128);
  }
  return s.kernel == 1 ? pairs <= 64 * 64 : s.kernel * s.kernel * pairs <= 9 * 64 * 128;
}

void conv_forward(const ConvShape& shape, const void* x, const float* weight, Storage storage,
                  void* y, float* mean, float* variance) {
  const auto run = winograd_supported(shape) ? winograd_forward : direct_forward;
  run(shape, x, weight, storage, y, mean, variance);
}

void conv_backward(const ConvShape& shape, const void* x, const float* weight,
                   const GradSource& grad, void* dx, float* dw) {
  const auto run = winograd_supported(shape) ? winograd_backward : direct_backward;
  run(shape, x, weight, grad, dx, dw);
}

ImageGradient::ImageGradient(const Isa& isa, const GradSource& grad, int64_t image, int64_t pixels,
                             int64_t channels, float* room)
    : isa_(isa),
      all_(grad),
      first_pixel_(image * pixels),
      channels_(channels),
      own_(grad),
      room_(room) {
  if (grad.pool != nullptr) {
    windows_ = row_of_windows(*grad.pool);
    return;
  }
  const int64_t before = first_pixel_ * channels * bytes_of(grad.storage);
  own_.grad = static_cast<const char*>(grad.grad) + before;
  if (grad.y != nullptr) own_.y = static_cast<const char*>(grad.y) + before;
}

int64_t ImageGradient::room_of(const GradSource& grad) {
  const MaxPool* const pool = grad.pool;
  return pool == nullptr ? 0 : 2 * pool->kernel * pool->width * pool->channels;
}

void ImageGradient::make_row(int64_t row) {
  const int64_t pixels = windows_.height * windows_.width, begin = first_pixel_ + row * pixels;
  float* const dx = room_ + pixels * channels_;
  max_pool_grad_of_image(windows_, all_.grad, all_.index, begin / pixels, room_, dx);
  own_.grad = dx;
  if (all_.y != nullptr)
    own_.y = static_cast<const char*>(all_.y) + begin * channels_ * bytes_of(all_.storage);
  row_ = row;
}

void ImageGradient::load(int64_t first, int64_t n, float* dst) {
  if (all_.pool == nullptr) {
    isa_.load_grad(own_, first, n, channels_, dst);
  } else {
    const int64_t pixels = windows_.height * windows_.width, row = first / pixels;
    if (row != row_) make_row(row);
    isa_.load_grad(own_, first - row * pixels, n, channels_, dst);
  }
  if (all_.kept == nullptr) return;
  std::memcpy(all_.kept + (first_pixel_ + first) * channels_, dst, n * channels_ * sizeof(float));
}

void join_moments(const float* means, const float* m2s, const int64_t* counts, int64_t groups,
                  int64_t channels, float* mean, float* variance) {
  // Channel by channel, each division would wait for the one before.
  std::vector<double> joined(2 * channels, 0.0);
  double* const m = joined.data();
  double* const m2 = m + channels;
  int64_t count = 0;
  for (int64_t g = 0; g < groups; ++g, means += channels, m2s += channels) {
    const double added = static_cast<double>(counts[g]), before = static_cast<double>(count);
    for (int64_t c = 0; c < channels; ++c) {
      const double delta = means[c] - m[c];
      m[c] += delta * added / (before + added);
      m2[c] += m2s[c] + delta * delta * before * added / (before + added);
    }
    count += counts[g];
  }
  for (int64_t c = 0; c < channels; ++c) {
    mean[c] = static_cast<float>(m[c]);
    variance[c] = static_cast<float>(m2[c] / static_cast<double>(count));
  }
}

}  // namespace ductile::nn::kernels
