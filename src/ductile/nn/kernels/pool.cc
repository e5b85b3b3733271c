#include "ductile/nn/kernels/pool.h"

#include <algorithm>
#include <cstring>

#include "ductile/base/error.h"
#include "ductile/nn/kernels/scratch.h"

namespace ductile::nn::kernels {

bool max_pool_supported(const MaxPool& s) {
  return s.kernel >= 1 && s.kernel <= 15 && s.stride >= 1 && s.padding >= 0 &&
         2 * s.padding <= s.kernel && s.out_height > 0 && s.out_width > 0 &&
         isa_for(s.channels) != nullptr;
}

MaxPool row_of_windows(const MaxPool& s) {
  DUCTILE_CHECK(s.padding == 0 && s.stride == s.kernel && s.out_height * s.kernel == s.height,
                "windows that overlap or leave pixels out");
  MaxPool row = s;
  row.height = s.kernel;
  row.out_height = 1;
  return row;
}

void max_pool(const MaxPool& s, int64_t batch, const void* x, void* y, uint8_t* index) {
  const Isa& isa = *isa_for(s.channels);
  const int64_t in = s.height * s.width * s.channels, out = s.out_height * s.out_width * s.channels;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t b = 0; b < batch; ++b)
    isa.max_pool(s, static_cast<const char*>(x) + b * in * bytes_of(s.storage),
                 static_cast<char*>(y) + b * out * bytes_of(s.storage), index + b * out);
}

void max_pool_grad_of_image(const MaxPool& s, const void* dy, const uint8_t* index, int64_t image,
                            float* sums, void* dx) {
  const Isa& isa = *isa_for(s.channels);
  const int64_t in = s.height * s.width * s.channels, out = s.out_height * s.out_width * s.channels;
  float* const to = s.storage == Storage::f32 ? static_cast<float*>(dx) : sums;
  isa.max_pool_grad(s, static_cast<const char*>(dy) + image * out * bytes_of(s.storage),
                    index + image * out, to);
  if (s.storage != Storage::f32) isa.from_float(to, dx, s.storage, in);
}

void max_pool_grad(const MaxPool& s, int64_t batch, const void* dy, const uint8_t* index,
                   void* dx) {
  const int64_t in = s.height * s.width * s.channels;
  const int64_t room = s.storage == Storage::f32 ? 0 : in;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t b = 0; b < batch; ++b)
    max_pool_grad_of_image(s, dy, index, b, scratch(ScratchKind::local, room),
                           static_cast<char*>(dx) + b * in * bytes_of(s.storage));
}

void subsample(const Subsample& s, const void* x, void* y) {
  const int64_t rows = s.out_height(), cols = s.out_width(), padding = s.out_bytes - s.in_bytes;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t b = 0; b < s.batch; ++b) {
    char* to = static_cast<char*>(y) + b * rows * cols * s.out_bytes;
    const char* row = static_cast<const char*>(x) + b * s.height * s.width * s.in_bytes;
    for (int64_t i = 0; i < rows; ++i, row += s.stride * s.width * s.in_bytes)
      for (int64_t j = 0; j < cols; ++j, to += s.out_bytes) {
        std::memcpy(to, row + j * s.stride * s.in_bytes, s.in_bytes);
        std::memset(to + s.in_bytes, 0, padding);
      }
  }
}

void subsample_grad(const Subsample& s, const void* dy, void* dx) {
  const int64_t rows = s.out_height(), cols = s.out_width();
  const int64_t image = s.height * s.width * s.in_bytes;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t b = 0; b < s.batch; ++b) {
    const char* from = static_cast<const char*>(dy) + b * rows * cols * s.out_bytes;
    char* row = static_cast<char*>(dx) + b * image;
    std::memset(row, 0, image);
    for (int64_t i = 0; i < rows; ++i, row += s.stride * s.width * s.in_bytes)
      for (int64_t j = 0; j < cols; ++j, from += s.out_bytes)
        std::memcpy(row + j * s.stride * s.in_bytes, from, s.in_bytes);
  }
}

void average_pool(Storage storage, int64_t batch, int64_t pixels, int64_t channels, const void* x,
                  void* y) {
  const Isa& isa = *isa_for(channels);
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t b = 0; b < batch; ++b) {
    float* image = scratch(ScratchKind::local, (pixels + 1) * channels);
    float* sum = image + pixels * channels;
    isa.to_float(static_cast<const char*>(x) + b * pixels * channels * bytes_of(storage), storage,
                 image, pixels * channels);
    std::fill_n(sum, channels, 0.0F);
    for (int64_t p = 0; p < pixels; ++p)
      for (int64_t c = 0; c < channels; ++c) sum[c] += image[p * channels + c];
    for (int64_t c = 0; c < channels; ++c) sum[c] /= static_cast<float>(pixels);
    isa.from_float(sum, static_cast<char*>(y) + b * channels * bytes_of(storage), storage,
                   channels);
  }
}

void average_pool_grad(Storage storage, int64_t batch, int64_t pixels, int64_t channels,
                       const void* dy, void* dx) {
  const Isa& isa = *isa_for(channels);
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t b = 0; b < batch; ++b) {
    float* share = scratch(ScratchKind::local, channels);
    isa.to_float(static_cast<const char*>(dy) + b * channels * bytes_of(storage), storage, share,
                 channels);
    for (int64_t c = 0; c < channels; ++c) share[c] /= static_cast<float>(pixels);
    char* target = static_cast<char*>(dx) + b * pixels * channels * bytes_of(storage);
    for (int64_t p = 0; p < pixels; ++p)
      isa.from_float(share, target + p * channels * bytes_of(storage), storage, channels);
  }
}

}  // namespace ductile::nn::kernels
