#include <algorithm>
#include <cstring>
#include <vector>

#include "ductile/nn/kernels/conv_impl.h"
#include "ductile/nn/kernels/scratch.h"

// Convolution of any square kernel and stride as products over padded NHWC images, where a kernel
// row of an output pixel is one contiguous run of kernel * in values.
namespace ductile::nn::kernels {
namespace {

constexpr int64_t kBatchParts = 16;
constexpr int64_t kUnitsBusy = 8;  // multiply-adds that a vector unit has under way at once

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// One layer, and the tables of its two sides: with bf16 products where images are stored so and
// lie in whole pairs. The rounding is then that of the gradient in y alone.
struct Layer {
  const ConvShape& s;
  int64_t oh, ow, taps, run;
  int64_t wide;  // channels of dx while it is summed
  int64_t ow_pairs;
  const Isa &out, &in;
  const Bf16Isa *out_bf16 = nullptr, *in_bf16 = nullptr;

  Layer(const ConvShape& shape, Storage storage)
      : s(shape),
        oh(s.out_height()),
        ow(s.out_width()),
        taps(s.kernel * s.kernel),
        run(s.kernel * s.in),
        wide(round_up(s.in, 8)),
        ow_pairs((ow + 1) / 2),
        out(*isa_for(s.out)),
        in(*isa_for(wide)) {
    const bool whole = s.stride * s.in % 2 == 0 && (s.width + 2 * s.padding) * s.in % 2 == 0;
    if (storage != Storage::bf16 || !whole) return;
    out_bf16 = bf16_isa_for(s.out);
    in_bf16 = bf16_isa_for(wide);
  }
  bool bf16() const { return out_bf16 != nullptr; }
  // Whether the products of one kernel row are so few that they would wait for each other: then
  // the filter's gradient is made of all of them at once, from the image spread out.
  bool spread() const { return !bf16() && s.kernel > 1 && run < kUnitsBusy; }
  int64_t width() const { return bf16() ? 2 : 1; }                 // values in 32 bits
  int64_t depth() const { return (run + width() - 1) / width(); }  // of a kernel row, in 32 bits
  int64_t batch_parts() const { return std::min(s.batch, kBatchParts); }
  float weight(const float* all, int64_t o, int64_t i, int64_t tap) const {
    return all[(o * s.in + i) * taps + tap];
  }
  Padded padded_x() const {
    return {s.height + 2 * s.padding, s.width + 2 * s.padding, s.padding, s.in};
  }
  // y's gradient with the zeros that border pixels of x see.
  Padded padded_g() const {
    const int64_t border = (s.kernel - 1) / s.stride;
    return {border + std::max(oh, (s.height - 1 + s.padding) / s.stride + 1),
            border + std::max(ow, (s.width - 1 + s.padding) / s.stride + 1), border, s.out};
  }
};

// 32-bit words that hold `values` of them, and some more that may be read.
int64_t words(int64_t values, int64_t width) { return values / width + 2; }

const char* pixel_at(const void* base, int64_t pixel, int64_t channels, Storage storage) {
  return static_cast<const char*>(base) + pixel * channels * bytes_of(storage);
}

// The padded image, in fp32 or as the bf16 values that it is stored as.
void load_image(const Layer& l, const void* x, int64_t image, Storage storage, float* dst) {
  const ConvShape& s = l.s;
  const Padded pad = l.padded_x();
  const char* src = pixel_at(x, image * s.height * s.width, s.in, storage);
  if (l.bf16()) {
    auto* const values = reinterpret_cast<uint16_t*>(dst);
    fill_padded(pad, s.height, s.width, values, [&](int64_t pixel, int64_t n, uint16_t* to) {
      std::memcpy(to, pixel_at(src, pixel, s.in, storage), n * s.in * sizeof(uint16_t));
    });
    std::fill_n(values + pad.floats(), 2, uint16_t{0});  // behind the last kernel row of odd length
    return;
  }
  fill_padded(pad, s.height, s.width, dst, [&](int64_t pixel, int64_t n, float* to) {
    l.out.to_float(pixel_at(src, pixel, s.in, storage), storage, to, n * s.in);
  });
}

// w[kernel row, d, out] for one kernel row and d: two values a word with bf16.
void put_weights(const Layer& l, const float* weight, int64_t row, int64_t d, float* work,
                 float* w) {
  float* const to = w + (row * l.depth() + d) * l.s.out;
  float* const rows[] = {l.bf16() ? work : to, work + l.s.out};
  for (int64_t k = 0; k < l.width(); ++k) {
    const int64_t at = d * l.width() + k, tap = row * l.s.kernel + at / l.s.in;
    for (int64_t o = 0; o < l.s.out; ++o)
      rows[k][o] = at < l.run ? l.weight(weight, o, at % l.s.in, tap) : 0.0F;
  }
  if (l.bf16()) l.out_bf16->pair(work, work + l.s.out, to, l.s.out);
}

// The pixels of x whose distance to y's have the same remainders: the same taps make their
// gradients. One axis; taps in the order of y's pixels, that is falling.
struct Class {
  int64_t first, pixels;  // first, first + stride, ...
  int64_t last_tap, taps;
  int64_t source;  // y's pixel that last_tap takes to `first`

  Class(const ConvShape& s, int64_t remainder, int64_t size) {
    first = (remainder - s.padding % s.stride + s.stride) % s.stride;
    pixels = first < size ? (size - first + s.stride - 1) / s.stride : 0;
    taps = remainder < s.kernel ? (s.kernel - remainder + s.stride - 1) / s.stride : 0;
    last_tap = remainder + (taps - 1) * s.stride;
    source = (first + s.padding - remainder) / s.stride - (taps - 1);
  }
};

// Calls f(class of rows, class of columns, taps before it) for every class.
template <class F>
void for_each_class(const ConvShape& s, const F& f) {
  int64_t before = 0;
  for (int64_t i = 0; i < s.stride; ++i)
    for (int64_t j = 0; j < s.stride; ++j) {
      const Class rows(s, i, s.height), cols(s, j, s.width);
      f(rows, cols, before);
      before += rows.taps * cols.taps;
    }
}

// wt[class, tap of the rows, tap of the columns, out, wide]: pairs of outputs with bf16.
void put_turned_weights(const Layer& l, const float* weight, int64_t word, float* work, float* wt) {
  const ConvShape& s = l.s;
  for_each_class(s, [&](const Class& rows, const Class& cols, int64_t before) {
    for (int64_t t = 0; t < rows.taps * cols.taps; ++t) {
      const int64_t tap = (rows.last_tap - t / cols.taps * s.stride) * s.kernel + cols.last_tap -
                          t % cols.taps * s.stride;
      float* const to = wt + ((before + t) * (s.out / l.width()) + word) * l.wide;
      float* const parts[] = {l.bf16() ? work : to, work + l.wide};
      for (int64_t k = 0; k < l.width(); ++k)
        for (int64_t i = 0; i < l.wide; ++i)
          parts[k][i] = i < s.in ? l.weight(weight, word * l.width() + k, i, tap) : 0.0F;
      if (l.bf16()) l.in_bf16->pair(work, work + l.wide, to, l.wide);
    }
  });
}

// One image's gradient in x from the padded one in y, which holds pairs of outputs with bf16.
void input_gradient(const Layer& l, const float* g, const float* wt, Storage storage, float* row,
                    char* dx) {
  const ConvShape& s = l.s;
  const int64_t out = s.out / l.width(), g_row = l.padded_g().row() / l.width();
  const int64_t border = l.padded_g().border;
  const auto multiply = l.bf16() ? l.in_bf16->gemm : l.in.gemm;
  const bool in_place = storage == Storage::f32 && l.wide == s.in;
  for (int64_t r = 0; r < s.height; ++r) {
    char* target = dx + r * s.width * s.in * bytes_of(storage);
    float* const sums = in_place ? reinterpret_cast<float*>(target) : row;
    for_each_class(s, [&](const Class& rows, const Class& cols, int64_t before) {
      if (r % s.stride != rows.first || cols.pixels == 0) return;
      const int64_t i = border + rows.source + r / s.stride;
      multiply({g + i * g_row + (border + cols.source) * out, out, 1, g_row,
                wt + before * out * l.wide, l.wide, cols.taps * out * l.wide,
                sums + cols.first * l.wide, s.stride * l.wide, cols.pixels, l.wide, cols.taps * out,
                rows.taps, false});
    });
    if (in_place) continue;
    if (l.wide == s.in) {
      l.in.from_float(sums, target, storage, s.width * s.in);
      continue;
    }
    for (int64_t c = 0; c < s.width; ++c, target += s.in * bytes_of(storage))
      l.in.from_float(sums + c * l.wide, target, storage, s.in);
  }
}

// to[row of the padded image, value of a kernel row, column of y]: there the rows of all taps are
// at one distance from each other.
void spread_image(const Layer& l, const float* x, float* to) {
  const Padded pad = l.padded_x();
  const int64_t step = l.s.stride * l.s.in;
  for (int64_t r = 0; r < pad.rows; ++r)
    for (int64_t k = 0; k < l.run; ++k, to += l.ow) {
      const float* const from = x + r * pad.row() + k;
      if (step == 1) {
        std::memcpy(to, from, l.ow * sizeof(float));
      } else {
        for (int64_t j = 0; j < l.ow; ++j) to[j] = from[j * step];
      }
    }
}

// sums [kernel row, kernel column, in, out] += one image's share, from padded fp32 images. `spread`
// is room for what spread_image() makes. Both ways add the same products in the same order.
void add_filter_gradient(const Layer& l, const float* x, const float* g, float* spread,
                         float* sums) {
  const Padded pad_x = l.padded_x(), pad_g = l.padded_g();
  const float* first = g + pad_g.border * (pad_g.row() + l.s.out);
  if (l.spread()) {
    spread_image(l, x, spread);
    l.out.gemm({spread, l.ow, 1, l.s.stride * l.run * l.ow, first, l.s.out, pad_g.row(), sums,
                l.s.out, l.s.kernel * l.run, l.s.out, l.ow, l.oh, true});
    return;
  }
  for (int64_t k = 0; k < l.s.kernel; ++k)
    l.out.gemm({x + k * pad_x.row(), 1, l.s.stride * l.s.in, l.s.stride * pad_x.row(), first,
                l.s.out, pad_g.row(), sums + k * l.run * l.s.out, l.s.out, l.run, l.s.out, l.ow,
                l.oh, true});
}

// The same from x in bf16, in pairs of neighbours in a row of y.
void add_filter_gradient_bf16(const Layer& l, const float* x, const float* g, float* x_pairs,
                              float* g_pairs, float* sums) {
  const Padded pad_x = l.padded_x(), pad_g = l.padded_g();
  const int64_t out = l.s.out, step = l.s.stride * l.s.in, x_row = l.ow_pairs * l.run;
  const auto* values = reinterpret_cast<const uint16_t*>(x);
  for (int64_t r = 0; r < pad_x.rows; ++r)
    for (int64_t j = 0; j < l.ow_pairs; ++j) {
      const uint16_t* first = values + r * pad_x.row() + 2 * j * step;
      l.out_bf16->pair_values(first, 2 * j + 1 < l.ow ? first + step : first,
                              x_pairs + r * x_row + j * l.run, l.run);
    }
  for (int64_t i = 0; i < l.oh; ++i)
    for (int64_t j = 0; j < l.ow_pairs; ++j) {
      const float* first = g + (pad_g.border + i) * pad_g.row() + (pad_g.border + 2 * j) * out;
      // Of a row of odd length a zero is the last one's neighbour, whether or not there is a
      // border.
      l.out_bf16->pair(first, 2 * j + 1 < l.ow ? first + out : nullptr,
                       g_pairs + (i * l.ow_pairs + j) * out, out);
    }
  for (int64_t k = 0; k < l.s.kernel; ++k)
    l.out_bf16->gemm({x_pairs + k * x_row, 1, l.run, l.s.stride * x_row, g_pairs, out,
                      l.ow_pairs * out, sums + k * l.run * out, out, l.run, out, l.ow_pairs, l.oh,
                      true});
}

// The work memory of one thread in the backward pass.
struct BackwardWork {
  BackwardWork(const Layer& l, const GradSource& grad) {
    const Padded pad_x = l.padded_x(), pad_g = l.padded_g();
    const int64_t pairs = l.bf16() ? pad_x.rows * l.ow_pairs * l.run : 0;
    const int64_t g_words = l.bf16() ? l.oh * l.ow_pairs * l.s.out : 0;
    const int64_t g_values = l.bf16() ? words(pad_g.floats(), 2) : 0;
    const int64_t row_floats = std::max(l.s.width * l.wide, 2 * std::max(l.s.out, l.wide));
    const int64_t x_words = words(pad_x.floats(), l.width());
    const int64_t spread_floats = l.spread() ? pad_x.rows * l.run * l.ow : 0;
    ScratchCutter cut(scratch(ScratchKind::local,
                              x_words + pad_g.floats() + pairs + g_words + g_values + row_floats +
                                  ImageGradient::room_of(grad) + spread_floats + 8 * 16));
    x = cut.take(x_words);
    g = cut.take(pad_g.floats());
    x_pairs = cut.take(pairs);
    g_pairs = cut.take(g_words);
    g_bf16 = cut.take(g_values);
    row = cut.take(row_floats);
    pool = cut.take(ImageGradient::room_of(grad));
    spread = cut.take(spread_floats);
  }
  float *x, *g, *x_pairs, *g_pairs, *g_bf16, *row, *pool, *spread;
};

void backward_image(const Layer& l, const void* x, const GradSource& grad, int64_t image,
                    const float* wt, const BackwardWork& work, void* dx, float* sums) {
  const ConvShape& s = l.s;
  const Padded pad_g = l.padded_g();
  ImageGradient own(l.out, grad, image, l.oh * l.ow, s.out, work.pool);
  fill_padded(pad_g, l.oh, l.ow, work.g,
              [&](int64_t pixel, int64_t n, float* dst) { own.load(pixel, n, dst); });
  if (sums != nullptr) {
    load_image(l, x, image, grad.storage, work.x);
    if (l.bf16()) {
      add_filter_gradient_bf16(l, work.x, work.g, work.x_pairs, work.g_pairs, sums);
    } else {
      add_filter_gradient(l, work.x, work.g, work.spread, sums);
    }
  }
  if (dx == nullptr) return;
  const float* g = work.g;
  if (l.bf16()) {
    l.out_bf16->round(work.g, reinterpret_cast<uint16_t*>(work.g_bf16), pad_g.floats());
    g = work.g_bf16;
  }
  const int64_t at = image * s.height * s.width * s.in * bytes_of(grad.storage);
  input_gradient(l, g, wt, grad.storage, work.row, static_cast<char*>(dx) + at);
}

}  // namespace

void direct_forward(const ConvShape& s, const void* x, const float* weight, Storage storage,
                    void* y, float* mean, float* variance) {
  const Layer l(s, storage);
  const Padded pad = l.padded_x();
  const int64_t pixels = l.oh * l.ow, filter = s.kernel * l.depth() * s.out;

  ScratchCutter shared(
      scratch(ScratchKind::shared, filter + 2 * ScratchCutter::rounded(s.batch * s.out) + 32));
  float* w = shared.take(filter);  // [kernel row, depth, out]
  float* means = shared.take(s.batch * s.out);
  float* m2s = shared.take(s.batch * s.out);
  std::vector<int64_t> counts(s.batch, pixels);
  if (mean != nullptr) std::fill_n(means, m2s + s.batch * s.out - means, 0.0F);

#pragma omp parallel
  {
    const TilesKept tiles(l.out_bf16);
    const int64_t image_words = words(pad.floats(), l.width());
    ScratchCutter local(
        scratch(ScratchKind::local, image_words + std::max<int64_t>(pixels, 2) * s.out + 2 * 16));
    float* padded = local.take(image_words);
    float* rounded = local.take(std::max<int64_t>(pixels, 2) * s.out);
#pragma omp for schedule(static)
    for (int64_t d = 0; d < s.kernel * l.depth(); ++d)
      put_weights(l, weight, d / l.depth(), d % l.depth(), rounded, w);
    const auto multiply = l.bf16() ? l.out_bf16->gemm : l.out.gemm;
    const int64_t row = pad.row() / l.width();
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t b = 0; b < s.batch; ++b) {
      load_image(l, x, b, storage, padded);
      char* target = static_cast<char*>(y) + b * pixels * s.out * bytes_of(storage);
      float* image = storage == Storage::f32 ? reinterpret_cast<float*>(target) : rounded;
      for (int64_t i = 0; i < l.oh; ++i)
        multiply({padded + i * s.stride * row, s.stride * s.in / l.width(), 1, row, w, s.out,
                  l.depth() * s.out, image + i * l.ow * s.out, s.out, l.ow, s.out, l.depth(),
                  s.kernel, false});
      if (mean != nullptr) {
        Moments moments{means + b * s.out, m2s + b * s.out, 0};
        l.out.moments(image, pixels, s.out, &moments);
      }
      if (storage != Storage::f32) l.out.from_float(image, target, storage, pixels * s.out);
    }
  }
  if (mean != nullptr) join_moments(means, m2s, counts.data(), s.batch, s.out, mean, variance);
}

void direct_backward(const ConvShape& s, const void* x, const float* weight, const GradSource& grad,
                     void* dx, float* dw) {
  const Layer l(s, grad.storage);
  const int64_t filter = l.taps * s.in * s.out, parts = l.batch_parts();
  const int64_t turned = l.taps * s.out / l.width() * l.wide;
  ScratchCutter shared(scratch(ScratchKind::shared, turned + parts * filter + 32));
  float* wt = shared.take(turned);
  float* partial = shared.take(parts * filter);  // [part, kernel row, kernel column, in, out]

#pragma omp parallel
  {
    const TilesKept tiles(l.out_bf16);
    const BackwardWork work(l, grad);
    if (dx != nullptr) {
#pragma omp for schedule(static)
      for (int64_t o = 0; o < s.out / l.width(); ++o)
        put_turned_weights(l, weight, o, work.row, wt);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = 0; p < parts; ++p) {
      float* const sums = dw != nullptr ? partial + p * filter : nullptr;
      if (sums != nullptr) std::fill_n(sums, filter, 0.0F);
      for (int64_t b = part_begin(s.batch, p, parts); b < part_begin(s.batch, p + 1, parts); ++b)
        backward_image(l, x, grad, b, wt, work, dx, sums);
    }
    if (dw != nullptr) {
#pragma omp for schedule(static) nowait
      for (int64_t o = 0; o < s.out; ++o)
        for (int64_t i = 0; i < s.in; ++i)
          for (int64_t t = 0; t < l.taps; ++t) {
            float sum = 0;
            for (int64_t p = 0; p < parts; ++p)
              sum += partial[p * filter + (t * s.in + i) * s.out + o];
            dw[(o * s.in + i) * l.taps + t] = sum;
          }
    }
  }
}

}  // namespace ductile::nn::kernels
