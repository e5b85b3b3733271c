#include <algorithm>
#include <vector>

#include "ductile/nn/kernels/conv_impl.h"
#include "ductile/nn/kernels/scratch.h"

namespace ductile::nn::kernels {
namespace {

constexpr int64_t kTiles = 64;           // transformed and multiplied together
constexpr int64_t kLeastBf16 = 32 * 32;  // in * out, from which products are most of the work
constexpr int64_t kLeastWide = 96 * 96;  // in * out, from which filter_gradient_wide() is faster
constexpr int64_t kWideGroups = 16;      // of tiles, that it multiplies at once

int64_t tiles_along(int64_t pixels) { return (pixels + 3) / 4; }

// Floats between the frequencies of a block of transformed tiles. The extra line keeps the 36
// streams of a transform from falling into the same cache sets.
int64_t frequency_stride(int64_t channels) { return kTiles * channels + 16; }

// Images handled together: enough for one block of tiles, but a small batch still feeds some
// threads.
int64_t group_images(const ConvShape& s) {
  constexpr int64_t kLeastGroups = 4;
  const int64_t per_image = tiles_along(s.out_height()) * tiles_along(s.out_width());
  return std::max<int64_t>(1, std::min(kTiles / per_image, s.batch / kLeastGroups));
}

// Groups are also what threads share out: where images are so large that few of them make a block,
// parts of the batch are faster.
bool wide(const ConvShape& s) {
  constexpr int64_t kLeastGroups = 8;
  const int64_t each = tiles_along(s.out_height()) * tiles_along(s.out_width());
  return s.in * s.out >= kLeastWide &&
         kLeastGroups * group_images(s) * each <= kWideGroups * kTiles;
}

// Weight gradients are summed over this many fixed parts of the batch. Each costs 36 * in * out
// floats of memory traffic, so larger filters get fewer.
int64_t batch_parts(const ConvShape& s) {
  const bool large = s.in * s.out > 32 * 32;
  return std::clamp<int64_t>(large ? s.batch / 4 : s.batch, 1, large ? 8 : 16);
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

// The tables that a layer's two sides use, and the same for bf16 products where these are to be
// used: then transformed tiles and filters are pairs of bf16.
struct Tables {
  const Isa &in, &out;
  const Bf16Isa *in_bf16, *out_bf16;

  Tables(const ConvShape& s, Storage storage)
      : in(*isa_for(s.in)), out(*isa_for(s.out)), in_bf16(nullptr), out_bf16(nullptr) {
    if (storage != Storage::bf16 || s.in * s.out < kLeastBf16) return;
    in_bf16 = bf16_isa_for(s.in);
    out_bf16 = bf16_isa_for(s.out);
  }
  Tables(const Isa& i, const Isa& o, const Bf16Isa* i_bf16, const Bf16Isa* o_bf16)
      : in(i), out(o), in_bf16(i_bf16), out_bf16(o_bf16) {}
  // Of the convolution that makes the inputs' gradient.
  Tables turned() const { return {out, in, out_bf16, in_bf16}; }
  int64_t width() const { return in_bf16 != nullptr ? 2 : 1; }  // values in 32 bits
};

struct TileLists {
  std::vector<const float*> from;
  std::vector<const float*> other;
  std::vector<OutTile> to;
};

// Convolves the tiles `from` with the transformed filter u [36, in, out] into the tiles `to`.
void convolve(const Tables& tables, const TileLists& lists, int64_t row_in, const float* u,
              int64_t in, int64_t out, int64_t row_out, Storage storage, float* v, float* m,
              Moments* moments) {
  const int64_t depth = in / tables.width();
  const int64_t v_stride = frequency_stride(depth), m_stride = frequency_stride(out);
  const int64_t total = static_cast<int64_t>(lists.from.size()), panel = panel_of(out);
  const auto multiply = tables.out_bf16 != nullptr ? tables.out_bf16->gemm : tables.out.gemm;
  for (int64_t t = 0; t < total; t += kTiles) {
    const int64_t n = std::min(kTiles, total - t);
    const float* const* from = lists.from.data() + t;
    if (tables.in_bf16 != nullptr) {
      tables.in_bf16->winograd_input(from, n, row_in, in, v, v_stride);
    } else {
      tables.in.winograd_input(from, n, row_in, in, in, n, v, v_stride);
    }
    for (int f = 0; f < 36; ++f) {
      Gemm product{v + f * v_stride,
                   depth,
                   1,
                   0,
                   u + f * depth * out,
                   panel,
                   0,
                   m + f * m_stride,
                   out,
                   n,
                   out,
                   depth,
                   1,
                   false};
      product.panel = product.c_panel = panel;
      product.b_panel = depth * panel;
      multiply(product);
    }
    tables.out.winograd_output(m, m_stride, n, out, lists.to.data() + t, row_out, storage, moments);
  }
}

// du [36, in, out] += sum over tiles of transformed input (outer) transformed gradient.
void accumulate_filter(const Tables& tables, const TileLists& lists, int64_t row_x, int64_t row_g,
                       int64_t in, int64_t out, float* v, float* d, float* du) {
  const int64_t width = tables.width(), most = kTiles / width;
  const int64_t v_stride = frequency_stride(in), d_stride = frequency_stride(out);
  const int64_t total = static_cast<int64_t>(lists.from.size());
  const int64_t rows = panel_of(in), panel = panel_of(out);
  const bool bf16 = tables.in_bf16 != nullptr;
  const auto input = bf16 ? tables.in_bf16->winograd_input_pairs : tables.in.winograd_input;
  const auto grad = bf16 ? tables.out_bf16->winograd_grad_pairs : tables.out.winograd_grad;
  const auto multiply = bf16 ? tables.out_bf16->gemm : tables.out.gemm;
  for (int64_t t = 0; t < total; t += kTiles) {
    const int64_t n = std::min(kTiles, total - t);
    input(lists.from.data() + t, n, row_x, in, rows, most, v, v_stride);
    grad(lists.other.data() + t, n, row_g, out, panel, most, d, d_stride);
    for (int f = 0; f < 36; ++f) {
      for (int64_t i = 0; i < in; i += rows) {
        Gemm product{
            v + f * v_stride + i * most,   1,     rows, 0,   d + f * d_stride,        panel, 0,
            du + f * in * out + i * panel, panel, rows, out, (n + width - 1) / width, 1,     true};
        product.panel = panel;
        product.b_panel = most * panel;
        product.c_panel = in * panel;
        multiply(product);
      }
    }
  }
}

const char* image_at(const void* base, int64_t image, int64_t elements, Storage storage) {
  return static_cast<const char*>(base) + image * elements * bytes_of(storage);
}
char* image_at(void* base, int64_t image, int64_t elements, Storage storage) {
  return static_cast<char*>(base) + image * elements * bytes_of(storage);
}

}  // namespace

namespace {

// n images from `first` on, in fp32 and with a border.
void pad_images(const Tables& tables, const ConvShape& s, const Padded& pad, const void* x,
                Storage storage, int64_t first, int64_t n, float* padded) {
  for (int64_t i = 0; i < n; ++i) {
    const char* src = image_at(x, first + i, s.height * s.width * s.in, storage);
    fill_padded(pad, s.height, s.width, padded + i * pad.floats(),
                [&](int64_t pixel, int64_t count, float* dst) {
                  tables.in.to_float(src + pixel * s.in * bytes_of(storage), storage, dst,
                                     count * s.in);
                });
  }
}

// The gradient in y of the same images; `pool` has ImageGradient::room_of(grad) floats.
void pad_gradient(const Tables& tables, const ConvShape& s, const Padded& pad,
                  const GradSource& grad, int64_t first, int64_t n, float* pool, float* padded) {
  const int64_t pixels = s.out_height() * s.out_width();
  for (int64_t i = 0; i < n; ++i) {
    ImageGradient own(tables.out, grad, first + i, pixels, s.out, pool);
    fill_padded(pad, s.out_height(), s.out_width(), padded + i * pad.floats(),
                [&](int64_t pixel, int64_t count, float* dst) { own.load(pixel, count, dst); });
  }
}

}  // namespace

bool winograd_supported(const ConvShape& s) {
  return s.kernel == 3 && s.stride == 1 && s.padding <= 2 && isa_for(s.in) != nullptr &&
         isa_for(s.out) != nullptr;
}

void winograd_forward(const ConvShape& s, const void* x, const float* weight, Storage storage,
                      void* y, float* mean, float* variance) {
  const Tables tables(s, storage);
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
    const TilesKept tiles(tables.out_bf16);
    const int64_t v_floats = 36 * frequency_stride(s.in), m_floats = 36 * frequency_stride(s.out);
    ScratchCutter local(
        scratch(ScratchKind::local, images * pad.floats() + v_floats + m_floats + 64));
    float* v = local.take(v_floats);
    float* m = local.take(m_floats);
    float* padded = local.take(images * pad.floats());
    // The filter's transform needs little memory and ends before m is used.
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.in / tables.width(); ++i) {
      const auto transform = tables.out_bf16 != nullptr ? tables.out_bf16->winograd_filter
                                                        : tables.out.winograd_filter;
      transform(weight, s.in, s.out, i, i + 1, m, u);
    }
    TileLists lists;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * images, n = std::min(images, s.batch - first);
      pad_images(tables, s, pad, x, storage, first, n, padded);
      tile_sources(padded, n, pad, oh, ow, 0, &lists.from);
      tile_targets(image_at(y, first, oh * ow * s.out, storage), n, oh, ow, s.out, storage,
                   &lists.to);
      Moments moments{means + g * s.out, m2s + g * s.out, 0};
      convolve(tables, lists, pad.row(), u, s.in, s.out, ow * s.out, storage, v, m,
               mean != nullptr ? &moments : nullptr);
      counts[g] = moments.count;
    }
  }
  if (mean != nullptr) join_moments(means, m2s, counts.data(), groups, s.out, mean, variance);
}

namespace {

// What the backward pass of a group of images needs. All memory is the calling thread's.
struct Backward {
  const ConvShape& s;
  const Tables& tables;
  const void* x;
  const GradSource& grad;
  void* dx;  // may be null
  const float* u;
  Padded pad_x, pad_g;
  int64_t border;
  float *v, *d, *padded_x, *padded_g, *pool;
  TileLists lists;

  Backward(const ConvShape& shape, const Tables& t, const void* input, const GradSource& g,
           void* input_gradient, const float* filter)
      : s(shape), tables(t), x(input), grad(g), dx(input_gradient), u(filter) {
    const int64_t oh = s.out_height(), ow = s.out_width(), images = group_images(s);
    border = 2 - s.padding;
    pad_x = padded_for(oh, ow, s.padding, s.in);
    pad_g = padded_for(s.height, s.width, border, s.out);
    pad_g.rows = std::max(pad_g.rows, 4 * tiles_along(oh) + border);
    pad_g.cols = std::max(pad_g.cols, 4 * tiles_along(ow) + border);
    const int64_t v_floats = 36 * frequency_stride(s.in), d_floats = 36 * frequency_stride(s.out);
    ScratchCutter local(scratch(ScratchKind::local, images * (pad_x.floats() + pad_g.floats()) +
                                                        v_floats + d_floats +
                                                        ImageGradient::room_of(grad) + 80));
    v = local.take(v_floats);
    d = local.take(d_floats);
    padded_x = local.take(images * pad_x.floats());
    padded_g = local.take(images * pad_g.floats());
    pool = local.take(ImageGradient::room_of(grad));
  }

  float* work() { return s.in > s.out ? v : d; }  // free before and after the loop over the batch

  // The filter of inputs(), which the threads of a team share out, and have when this returns.
  void filters(const float* weight, float* to) {
    const auto transform = tables.in_bf16 != nullptr ? tables.in_bf16->winograd_filter_rotated
                                                     : tables.in.winograd_filter_rotated;
#pragma omp for schedule(static)
    for (int64_t o = 0; o < s.out / tables.width(); ++o)
      transform(weight, s.in, s.out, o, o + 1, work(), to);
  }

  // The inputs' gradient of n images. Leaves the gradient in y padded.
  void inputs(int64_t first, int64_t n) {
    pad_gradient(tables, s, pad_g, grad, first, n, pool, padded_g);
    if (dx == nullptr) return;
    tile_sources(padded_g, n, pad_g, s.height, s.width, 0, &lists.from);
    tile_targets(image_at(dx, first, s.height * s.width * s.in, grad.storage), n, s.height, s.width,
                 s.in, grad.storage, &lists.to);
    convolve(tables.turned(), lists, pad_g.row(), u, s.out, s.in, s.width * s.in, grad.storage, d,
             v, nullptr);
  }

  // After inputs(): the tiles whose products are the filter's gradient.
  void list_pairs(int64_t first, int64_t n) {
    const int64_t oh = s.out_height(), ow = s.out_width();
    pad_images(tables, s, pad_x, x, grad.storage, first, n, padded_x);
    tile_sources(padded_x, n, pad_x, oh, ow, 0, &lists.from);
    tile_sources(padded_g, n, pad_g, oh, ow, border, &lists.other);
  }
};

// Each part of the batch sums a gradient of its own, in caches. dw may be null.
void backward_by_parts(const ConvShape& s, const Tables& tables, const void* x, const float* weight,
                       const GradSource& grad, void* dx, float* dw) {
  const int64_t images = group_images(s), parts = batch_parts(s), filter = 36 * s.in * s.out;
  const int64_t sums = dw != nullptr ? parts : 0;
  ScratchCutter shared(scratch(ScratchKind::shared, (sums + 1) * filter));
  float* u = shared.take(filter);
  float* du = shared.take(sums * filter);

#pragma omp parallel
  {
    const TilesKept tiles(tables.out_bf16);
    Backward own(s, tables, x, grad, dx, u);
    if (dx != nullptr) own.filters(weight, u);
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = 0; p < parts; ++p) {
      if (dw != nullptr) std::fill_n(du + p * filter, filter, 0.0F);
      const int64_t last = part_begin(s.batch, p + 1, parts);
      for (int64_t first = part_begin(s.batch, p, parts); first < last; first += images) {
        const int64_t n = std::min(images, last - first);
        own.inputs(first, n);
        if (dw == nullptr) continue;
        own.list_pairs(first, n);
        accumulate_filter(tables, own.lists, own.pad_x.row(), own.pad_g.row(), s.in, s.out, own.v,
                          own.d, du + p * filter);
      }
    }
    if (dw != nullptr) {
#pragma omp for schedule(static) nowait
      for (int64_t i = 0; i < s.in; ++i)
        tables.out.winograd_filter_grad(du, parts, s.in, s.out, i, i + 1, own.work(), dw);
    }
  }
}

// Transformed tiles of several groups of images, which all threads make and then multiply: where a
// filter's gradient fits into no cache, it is read and written once for all of them, and there is
// one of it alone. `pairs` rows (of one tile, or two with bf16) a group; as many groups as hold
// about kWideGroups * kTiles tiles, at least one.
struct WideTiles {
  int64_t in, out, width, groups, pairs, rows;
  float *v, *d;

  WideTiles(const ConvShape& s, const Tables& tables)
      : in(s.in), out(s.out), width(tables.width()), v(nullptr), d(nullptr) {
    const int64_t each = tiles_along(s.out_height()) * tiles_along(s.out_width());
    const int64_t images = group_images(s), all = (s.batch + images - 1) / images;
    groups = std::clamp<int64_t>(kWideGroups * kTiles / (images * each), 1, kWideGroups);
    groups = std::min(groups, all);
    pairs = (images * each + width - 1) / width;
    rows = groups * pairs;
  }
  int64_t v_stride() const { return rows * in + 16; }  // as frequency_stride()
  int64_t d_stride() const { return rows * out + 16; }

  // Group `g`'s tiles; returns the rows that they take.
  int64_t transform(const Tables& tables, const Backward& own, int64_t g) const {
    const bool bf16 = tables.in_bf16 != nullptr;
    const auto input = bf16 ? tables.in_bf16->winograd_input_pairs : tables.in.winograd_input;
    const auto gradient = bf16 ? tables.out_bf16->winograd_grad_pairs : tables.out.winograd_grad;
    const int64_t n = static_cast<int64_t>(own.lists.from.size());
    const int64_t in_panel = panel_of(in), panel = panel_of(out), first = g * pairs;
    input(own.lists.from.data(), n, own.pad_x.row(), in, in_panel, rows, v + first * in_panel,
          v_stride());
    gradient(own.lists.other.data(), n, own.pad_g.row(), out, panel, rows, d + first * panel,
             d_stride());
    return (n + width - 1) / width;
  }

  // du[f] for a panel of inputs (+)= the products of the first `depth` rows.
  void multiply(const Tables& tables, int64_t f, int64_t i, int64_t depth, bool accumulate,
                float* du) const {
    const int64_t count = panel_of(in), panel = panel_of(out);
    Gemm product{v + f * v_stride() + i * rows,
                 1,
                 count,
                 0,
                 d + f * d_stride(),
                 panel,
                 0,
                 du + f * in * out + i * panel,
                 panel,
                 count,
                 out,
                 depth,
                 1,
                 accumulate};
    product.panel = panel;
    product.b_panel = rows * panel;
    product.c_panel = in * panel;
    (tables.out_bf16 != nullptr ? tables.out_bf16->gemm : tables.out.gemm)(product);
  }
};

void backward_wide(const ConvShape& s, const Tables& tables, const void* x, const float* weight,
                   const GradSource& grad, void* dx, float* dw) {
  const int64_t images = group_images(s), filter = 36 * s.in * s.out;
  const int64_t groups = (s.batch + images - 1) / images, panels = s.in / panel_of(s.in);
  WideTiles block(s, tables);
  ScratchCutter shared(scratch(ScratchKind::shared,
                               2 * filter + 36 * block.v_stride() + 36 * block.d_stride() + 64));
  float* u = shared.take(filter);
  float* du = shared.take(filter);
  block.v = shared.take(36 * block.v_stride());
  block.d = shared.take(36 * block.d_stride());
  int64_t depth = 0;  // of the last group of a block

#pragma omp parallel
  {
    const TilesKept tiles(tables.out_bf16);
    Backward own(s, tables, x, grad, dx, u);
    if (dx != nullptr) own.filters(weight, u);
    for (int64_t begin = 0; begin < groups; begin += block.groups) {
      const int64_t end = std::min(groups, begin + block.groups);
#pragma omp for schedule(dynamic, 1)
      for (int64_t g = begin; g < end; ++g) {
        const int64_t first = g * images, n = std::min(images, s.batch - first);
        own.inputs(first, n);
        own.list_pairs(first, n);
        const int64_t used = block.transform(tables, own, g - begin);
        if (g + 1 == end) depth = (g - begin) * block.pairs + used;
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t task = 0; task < 36 * panels; ++task)
        block.multiply(tables, task / panels, task % panels * panel_of(s.in), depth, begin > 0, du);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.in; ++i)
      tables.out.winograd_filter_grad(du, 1, s.in, s.out, i, i + 1, own.work(), dw);
  }
}

}  // namespace

void winograd_backward(const ConvShape& s, const void* x, const float* weight,
                       const GradSource& grad, void* dx, float* dw) {
  const auto run = dw != nullptr && wide(s) ? backward_wide : backward_by_parts;
  run(s, Tables(s, grad.storage), x, weight, grad, dx, dw);
}

}  // namespace ductile::nn::kernels
