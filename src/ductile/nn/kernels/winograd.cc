#include <algorithm>
#include <numeric>
#include <vector>

#include "ductile/nn/kernels/conv_impl.h"
#include "ductile/nn/kernels/scratch.h"

namespace ductile::nn::kernels {
namespace {

constexpr int64_t kTiles = 64;  // transformed and multiplied together
constexpr int64_t kMaxBatchParts = 16;

int64_t tiles_along(int64_t pixels) { return (pixels + 3) / 4; }

// Floats between the frequencies of a block of transformed tiles. The extra line keeps the 36
// streams of a transform from falling into the same cache sets.
int64_t frequency_stride(int64_t channels) { return kTiles * channels + 16; }

const Isa& isa_of(const ConvShape& s) { return *isa_for(std::gcd(s.in, s.out)); }

// Images handled together: enough for one block of tiles, but a small batch still feeds some
// threads.
int64_t group_images(const ConvShape& s) {
  constexpr int64_t kLeastGroups = 8;
  const int64_t per_image = tiles_along(s.out_height()) * tiles_along(s.out_width());
  return std::max<int64_t>(1, std::min(kTiles / per_image, s.batch / kLeastGroups));
}

// Weight gradients are summed over this many fixed parts of the batch.
int64_t batch_parts(const ConvShape& s) {
  const int64_t most = s.in * s.out > 32 * 32 ? kMaxBatchParts / 2 : kMaxBatchParts;
  return std::min(s.batch, most);
}

Padded padded_for(int64_t out_height, int64_t out_width, int64_t border, int64_t channels) {
  return {4 * tiles_along(out_height) + 2, 4 * tiles_along(out_width) + 2, border, channels};
}

// First pixels, in padded images one after the other, of the 4x4 tiles that cover height x width.
void tile_sources(const float* images, int64_t n, const Padded& p, int64_t height, int64_t width,
                  int64_t offset, std::vector<const float*>* tiles) {
  tiles->clear();
  for (int64_t image = 0; image < n; ++image)
    for (int64_t i = 0; i < tiles_along(height); ++i)
      for (int64_t j = 0; j < tiles_along(width); ++j)
        tiles->push_back(images + image * p.floats() + (4 * i + offset) * p.row() +
                         (4 * j + offset) * p.channels);
}

void tile_targets(void* image0, int64_t n, int64_t height, int64_t width, int64_t channels,
                  Storage storage, std::vector<OutTile>* tiles) {
  tiles->clear();
  for (int64_t image = 0; image < n; ++image)
    for (int64_t i = 0; i < tiles_along(height); ++i)
      for (int64_t j = 0; j < tiles_along(width); ++j) {
        const int64_t at = ((image * height + 4 * i) * width + 4 * j) * channels;
        tiles->push_back({static_cast<char*>(image0) + at * bytes_of(storage),
                          static_cast<int>(std::min<int64_t>(4, height - 4 * i)),
                          static_cast<int>(std::min<int64_t>(4, width - 4 * j))});
      }
}

struct TileLists {
  std::vector<const float*> from;
  std::vector<const float*> other;
  std::vector<OutTile> to;
};

// Convolves the tiles `from` with the transformed filter u [36, in, out] into the tiles `to`.
void convolve(const Isa& isa, const TileLists& lists, int64_t row_in, const float* u, int64_t in,
              int64_t out, int64_t row_out, Storage storage, float* v, float* m, Moments* moments) {
  const int64_t v_stride = frequency_stride(in), m_stride = frequency_stride(out);
  const int64_t total = static_cast<int64_t>(lists.from.size());
  for (int64_t t = 0; t < total; t += kTiles) {
    const int64_t n = std::min(kTiles, total - t);
    isa.winograd_input(lists.from.data() + t, n, row_in, in, v, v_stride);
    for (int f = 0; f < 36; ++f)
      isa.gemm({v + f * v_stride, in, 1, 0, u + f * in * out, out, 0, m + f * m_stride, out, n, out,
                in, 1, false});
    isa.winograd_output(m, m_stride, n, out, lists.to.data() + t, row_out, storage, moments);
  }
}

// du [36, in, out] += sum over tiles of transformed input (outer) transformed gradient.
void accumulate_filter(const Isa& isa, const TileLists& lists, int64_t row_x, int64_t row_g,
                       int64_t in, int64_t out, float* v, float* d, float* du) {
  const int64_t v_stride = frequency_stride(in), d_stride = frequency_stride(out);
  const int64_t total = static_cast<int64_t>(lists.from.size());
  for (int64_t t = 0; t < total; t += kTiles) {
    const int64_t n = std::min(kTiles, total - t);
    isa.winograd_input(lists.from.data() + t, n, row_x, in, v, v_stride);
    isa.winograd_grad(lists.other.data() + t, n, row_g, out, d, d_stride);
    for (int f = 0; f < 36; ++f)
      isa.gemm({v + f * v_stride, 1, in, 0, d + f * d_stride, out, 0, du + f * in * out, out, in,
                out, n, 1, true});
  }
}

const char* image_at(const void* base, int64_t image, int64_t elements, Storage storage) {
  return static_cast<const char*>(base) + image * elements * bytes_of(storage);
}
char* image_at(void* base, int64_t image, int64_t elements, Storage storage) {
  return static_cast<char*>(base) + image * elements * bytes_of(storage);
}

}  // namespace

bool winograd_supported(const ConvShape& s) {
  return s.kernel == 3 && s.stride == 1 && s.padding <= 2 && isa_for(s.in) != nullptr &&
         isa_for(s.out) != nullptr;
}

void winograd_forward(const ConvShape& s, const void* x, const float* weight, Storage storage,
                      void* y, float* mean, float* variance) {
  const Isa& isa = isa_of(s);
  const int64_t oh = s.out_height(), ow = s.out_width();
  const int64_t images = group_images(s), groups = (s.batch + images - 1) / images;
  const Padded pad = padded_for(oh, ow, s.padding, s.in);

  ScratchCutter shared(
      scratch(ScratchKind::shared, 36 * s.in * s.out + 2 * ScratchCutter::rounded(groups * s.out)));
  float* u = shared.take(36 * s.in * s.out);
  float* means = shared.take(groups * s.out);
  float* m2s = shared.take(groups * s.out);
  std::vector<int64_t> counts(groups, 0);
  if (mean != nullptr) std::fill_n(means, m2s + groups * s.out - means, 0.0F);

#pragma omp parallel
  {
    const int64_t v_floats = 36 * frequency_stride(s.in), m_floats = 36 * frequency_stride(s.out);
    ScratchCutter local(
        scratch(ScratchKind::local, images * pad.floats() + v_floats + m_floats + 64));
    float* v = local.take(v_floats);
    float* m = local.take(m_floats);
    float* padded = local.take(images * pad.floats());
    // The filter's transform needs little memory and ends before m is used.
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.in; ++i) isa.winograd_filter(weight, s.in, s.out, i, i + 1, m, u);
    TileLists lists;
#pragma omp for schedule(dynamic, 1)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * images, n = std::min(images, s.batch - first);
      for (int64_t i = 0; i < n; ++i) {
        const char* src = image_at(x, first + i, s.height * s.width * s.in, storage);
        fill_padded(pad, s.height, s.width, padded + i * pad.floats(),
                    [&](int64_t pixel, int64_t count, float* dst) {
                      isa.to_float(src + pixel * s.in * bytes_of(storage), storage, dst,
                                   count * s.in);
                    });
      }
      tile_sources(padded, n, pad, oh, ow, 0, &lists.from);
      tile_targets(image_at(y, first, oh * ow * s.out, storage), n, oh, ow, s.out, storage,
                   &lists.to);
      Moments moments{means + g * s.out, m2s + g * s.out, 0};
      convolve(isa, lists, pad.row(), u, s.in, s.out, ow * s.out, storage, v, m,
               mean != nullptr ? &moments : nullptr);
      counts[g] = moments.count;
    }
  }
  if (mean != nullptr) join_moments(means, m2s, counts.data(), groups, s.out, mean, variance);
}

void winograd_backward(const ConvShape& s, const void* x, const float* weight,
                       const GradSource& grad, void* dx, float* dw) {
  const Isa& isa = isa_of(s);
  const int64_t oh = s.out_height(), ow = s.out_width();
  const int64_t images = group_images(s), parts = batch_parts(s);
  const int64_t border = 2 - s.padding;
  const Padded pad_x = padded_for(oh, ow, s.padding, s.in);
  Padded pad_g = padded_for(s.height, s.width, border, s.out);
  pad_g.rows = std::max(pad_g.rows, 4 * tiles_along(oh) + border);
  pad_g.cols = std::max(pad_g.cols, 4 * tiles_along(ow) + border);

  const int64_t filter = 36 * s.in * s.out;
  ScratchCutter shared(scratch(ScratchKind::shared, (parts + 1) * filter));
  float* u = shared.take(filter);
  float* du = shared.take(parts * filter);

#pragma omp parallel
  {
    const int64_t v_floats = 36 * frequency_stride(s.in), d_floats = 36 * frequency_stride(s.out);
    ScratchCutter local(scratch(
        ScratchKind::local, images * (pad_x.floats() + pad_g.floats()) + v_floats + d_floats + 64));
    float* v = local.take(v_floats);
    float* d = local.take(d_floats);
    float* padded_x = local.take(images * pad_x.floats());
    float* padded_g = local.take(images * pad_g.floats());
    float* work = s.in > s.out ? v : d;  // free before and after the loop over the batch
    if (dx != nullptr) {
#pragma omp for schedule(static)
      for (int64_t o = 0; o < s.out; ++o)
        isa.winograd_filter_rotated(weight, s.in, s.out, o, o + 1, work, u);
    }
    TileLists lists;
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = 0; p < parts; ++p) {
      if (dw != nullptr) std::fill_n(du + p * filter, filter, 0.0F);
      const int64_t last = part_begin(s.batch, p + 1, parts);
      for (int64_t first = part_begin(s.batch, p, parts); first < last; first += images) {
        const int64_t n = std::min(images, last - first);
        for (int64_t i = 0; i < n; ++i)
          fill_padded(pad_g, oh, ow, padded_g + i * pad_g.floats(),
                      [&](int64_t pixel, int64_t count, float* dst) {
                        isa.load_grad(grad, (first + i) * oh * ow + pixel, count, s.out, dst);
                      });
        if (dx != nullptr) {
          tile_sources(padded_g, n, pad_g, s.height, s.width, 0, &lists.from);
          tile_targets(image_at(dx, first, s.height * s.width * s.in, grad.storage), n, s.height,
                       s.width, s.in, grad.storage, &lists.to);
          convolve(isa, lists, pad_g.row(), u, s.out, s.in, s.width * s.in, grad.storage, d, v,
                   nullptr);
        }
        if (dw == nullptr) continue;
        for (int64_t i = 0; i < n; ++i) {
          const char* src = image_at(x, first + i, s.height * s.width * s.in, grad.storage);
          fill_padded(pad_x, s.height, s.width, padded_x + i * pad_x.floats(),
                      [&](int64_t pixel, int64_t count, float* dst) {
                        isa.to_float(src + pixel * s.in * bytes_of(grad.storage), grad.storage, dst,
                                     count * s.in);
                      });
        }
        tile_sources(padded_x, n, pad_x, oh, ow, 0, &lists.from);
        tile_sources(padded_g, n, pad_g, oh, ow, border, &lists.other);
        accumulate_filter(isa, lists, pad_x.row(), pad_g.row(), s.in, s.out, v, d, du + p * filter);
      }
    }
    if (dw != nullptr) {
#pragma omp for schedule(static)
      for (int64_t i = 0; i < s.in; ++i)
        isa.winograd_filter_grad(du, parts, s.in, s.out, i, i + 1, work, dw);
    }
  }
}

}  // namespace ductile::nn::kernels
