#include "ductile/nn/kernels/batch_norm.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ductile/nn/kernels/conv_impl.h"
#include "ductile/nn/kernels/pool.h"
#include "ductile/nn/kernels/scratch.h"

namespace ductile::nn::kernels {
namespace {

constexpr int64_t kBlockFloats = 16384;  // what one task handles: 64 KiB of each fp32 operand

int64_t block_pixels(int64_t channels) { return std::max<int64_t>(1, kBlockFloats / channels); }

template <class T>
T* at(T* base, int64_t element, Storage storage) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return base == nullptr ? nullptr : static_cast<Byte*>(base) + element * bytes_of(storage);
}

}  // namespace

void norm_apply(const NormApply& all) {
  const Isa& isa = *isa_for(all.channels);
  const int64_t step = block_pixels(all.channels);
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t first = 0; first < all.pixels; first += step) {
    NormApply part = all;
    const int64_t offset = first * all.channels;
    part.y = at(all.y, offset, all.storage);
    part.residual = at(all.residual, offset, all.storage);
    part.out = at(all.out, offset, all.storage);
    part.pixels = std::min(step, all.pixels - first);
    isa.norm_apply(part);
  }
}

void norm_apply_pool(const NormApply& all, const MaxPool& pool, void* pooled, uint8_t* index) {
  const Isa& isa = *isa_for(all.channels);
  const int64_t images = all.pixels / (pool.height * pool.width);
  // What lies between stays in the first cache.
  const MaxPool row = row_of_windows(pool);
  const int64_t pixels = row.height * row.width, in = pixels * all.channels;
  const int64_t out = row.out_width * all.channels;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t b = 0; b < images; ++b) {
    NormApply part = all;
    part.out = scratch(ScratchKind::local, in);
    part.pixels = pixels;
    for (int64_t i = b * pool.out_height; i < (b + 1) * pool.out_height; ++i) {
      part.y = at(all.y, i * in, all.storage);
      part.residual = at(all.residual, i * in, all.storage);
      isa.norm_apply(part);
      isa.max_pool(row, part.out, at(pooled, i * out, all.storage), index + i * out);
    }
  }
}

void channel_statistics(Storage storage, const void* y, int64_t pixels, int64_t channels,
                        float* mean, float* variance) {
  const Isa& isa = *isa_for(channels);
  const int64_t step = block_pixels(channels), blocks = (pixels + step - 1) / step;
  float* means = scratch(ScratchKind::shared, blocks * 2 * channels);
  float* m2s = means + blocks * channels;
  std::fill_n(means, blocks * 2 * channels, 0.0F);
  std::vector<int64_t> counts(static_cast<size_t>(blocks));
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = block * step, n = std::min(step, pixels - first);
    float* values = scratch(ScratchKind::local, n * channels);
    isa.to_float(at(y, first * channels, storage), storage, values, n * channels);
    Moments moments{means + block * channels, m2s + block * channels, 0};
    isa.moments(values, n, channels, &moments);
    counts[static_cast<size_t>(block)] = n;
  }
  join_moments(means, m2s, counts.data(), blocks, channels, mean, variance);
}

void write_gradient(const GradSource& source, int64_t pixels, int64_t channels, Storage storage,
                    void* out) {
  const Isa& isa = *isa_for(channels);
  const int64_t step = block_pixels(channels);
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t first = 0; first < pixels; first += step) {
    const int64_t n = std::min(step, pixels - first);
    void* const target = at(out, first * channels, storage);
    if (storage == Storage::f32) {
      isa.load_grad(source, first, n, channels, static_cast<float*>(target));
      continue;
    }
    float* values = scratch(ScratchKind::local, n * channels);
    isa.load_grad(source, first, n, channels, values);
    isa.from_float(values, target, storage, n * channels);
  }
}

namespace {

// grad_of(first, n) gives the gradient of n pixels from `first` on, for the calling thread.
template <class GradOf>
void reduce(const NormReduce& all, const GradOf& grad_of) {
  const Isa& isa = *isa_for(all.channels);
  const int64_t step = block_pixels(all.channels), blocks = (all.pixels + step - 1) / step;
  const int64_t c = all.channels;
  float* sums = scratch(ScratchKind::shared, blocks * 2 * c);
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t block = 0; block < blocks; ++block) {
    NormReduce part = all;
    const int64_t first = block * step, offset = first * c;
    part.y = at(all.y, offset, all.storage);
    part.out = at(all.out, offset, all.storage);
    part.g = at(all.g, offset, all.storage);
    part.pixels = std::min(step, all.pixels - first);
    part.grad = grad_of(first, part.pixels);
    part.sum_g = sums + block * 2 * c;
    part.sum_gy = part.sum_g + c;
    isa.norm_reduce(part);
  }
  std::vector<double> total(static_cast<size_t>(2 * c), 0.0);
  for (int64_t block = 0; block < blocks; ++block, sums += 2 * c)
    for (int64_t i = 0; i < 2 * c; ++i) total[static_cast<size_t>(i)] += sums[i];
  for (int64_t i = 0; i < c; ++i) {
    all.sum_g[i] = static_cast<float>(total[static_cast<size_t>(i)]);
    all.sum_gy[i] = static_cast<float>(total[static_cast<size_t>(c + i)]);
  }
}

}  // namespace

void norm_reduce(const NormReduce& all) {
  reduce(all,
         [&](int64_t first, int64_t) { return at(all.grad, first * all.channels, all.storage); });
}

void norm_reduce_pool(const NormReduce& all, const MaxPool& pool, const uint8_t* index) {
  const MaxPool row = row_of_windows(pool);  // a block lies in few of them
  const int64_t pixels = row.height * row.width, image = pixels * all.channels;
  const int64_t step = block_pixels(all.channels), most = (step + pixels - 1) / pixels + 1;
  // The gradients of the rows that a block touches are made one behind the other.
  reduce(all, [&](int64_t first, int64_t n) -> const void* {
    float* const room = scratch(ScratchKind::local, (most + 1) * image);
    float* const images = room + image;
    const int64_t begin = first / pixels, end = (first + n - 1) / pixels + 1;
    for (int64_t i = begin; i < end; ++i)
      max_pool_grad_of_image(row, all.grad, index, i, room,
                             at<void>(images, (i - begin) * image, all.storage));
    return at<void>(images, (first - begin * pixels) * all.channels, all.storage);
  });
}

}  // namespace ductile::nn::kernels
