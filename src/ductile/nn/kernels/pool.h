#pragma once

#include <cstdint>

#include "ductile/nn/kernels/isa.h"

// Pooling over NHWC batches on the OpenMP team of the calling thread, one image a task; channels in
// multiples of 8.
namespace ductile::nn::kernels {

// Whether max_pool can do it: padding at most half the kernel, kernel at most 15 (a byte an index).
bool max_pool_supported(const MaxPool& shape);

void max_pool(const MaxPool& shape, int64_t batch, const void* x, void* y, uint8_t* index);
void max_pool_grad(const MaxPool& shape, int64_t batch, const void* dy, const uint8_t* index,
                   void* dx);

// One row of the windows of a pool whose windows tile the images: it is an image by itself, so that
// what belongs to it stays in the first cache.
MaxPool row_of_windows(const MaxPool& shape);

// The gradient of one image of the batch, into dx (storage type). `sums` is room for the image in
// fp32, which is not used where that is the storage.
void max_pool_grad_of_image(const MaxPool& shape, const void* dy, const uint8_t* index,
                            int64_t image, float* sums, void* dx);

// NHWC images of height x width pixels, of which every stride-th in both directions is taken, from
// the first on; sizes of a pixel in bytes.
struct Subsample {
  int64_t batch, height, width, stride;
  int64_t in_bytes, out_bytes;  // what the result has more is zero

  int64_t out_height() const { return (height + stride - 1) / stride; }
  int64_t out_width() const { return (width + stride - 1) / stride; }
};
void subsample(const Subsample& shape, const void* x, void* y);
// dx: that of pixels that were not taken is zero.
void subsample_grad(const Subsample& shape, const void* dy, void* dx);

// y[b, c] = mean over the image's pixels of x[b, pixel, c], and its gradient.
void average_pool(Storage storage, int64_t batch, int64_t pixels, int64_t channels, const void* x,
                  void* y);
void average_pool_grad(Storage storage, int64_t batch, int64_t pixels, int64_t channels,
                       const void* dy, void* dx);

}  // namespace ductile::nn::kernels
