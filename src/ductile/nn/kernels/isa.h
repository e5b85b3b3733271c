#pragma once

#include <stdint.h>

// The table of vector kernels that the drivers of this folder (conv, batch_norm) call, one table an
// instruction set. All take raw pointers, run on the calling thread and allocate nothing.
//
// Vectors run across channels (the innermost axis of NHWC), and every lane does the same fused
// multiply-adds in the same order whatever the vector width: AVX2 and AVX-512 give the same bits.
// This header includes nothing of the standard C++ library, because files compiled for one
// instruction set must not leave inline functions behind for the whole program.
namespace ductile::nn::kernels {

// Element type of activations in memory. Arithmetic is always fp32.
enum class Storage : int { f32 = 0, bf16 = 1, f16 = 2 };

constexpr int64_t bytes_of(Storage s) { return s == Storage::f32 ? 4 : 2; }

// c[r * c_row + j] (+)= sum over run, d of a[r * a_row + run * a_run + d * a_depth] *
//                                         b[run * b_run + d * b_depth + j]
// cols is a multiple of the table's lanes; the sum runs in the order written, run outermost.
//
// Columns may lie in panels, so that the rows of a block of columns follow each other in memory:
// column j is then at j / panel * b_panel + j % panel, and in c at j / panel * c_panel + j % panel.
struct Gemm {
  const float* a;
  int64_t a_row, a_depth, a_run;
  const float* b;
  int64_t b_depth, b_run;
  float* c;
  int64_t c_row;
  int64_t rows, cols, depth, runs;
  bool accumulate;
  int64_t panel = 0;  // columns of a panel, a multiple of twice the lanes; 0: none
  int64_t b_panel = 0, c_panel = 0;
};

// Where [rows, channels] has panels: of 32 channels, which twice the widest lanes divide. Without
// them the rows of many channels would fall into a few sets of the first cache.
constexpr int64_t panel_of(int64_t channels) {
  return channels >= 64 && channels % 32 == 0 ? 32 : channels;
}

// Where one 4x4 Winograd output tile goes: its first pixel, and how much of it lies in the image.
struct OutTile {
  void* pixel;
  int rows, cols;
};

// Mean and sum of squared deviations of `count` values per channel, merged block by block (Chan,
// Golub and LeVeque 1979): no cancellation however far the mean lies from zero.
struct Moments {
  float* mean;
  float* m2;
  int64_t count;
};

// What follows a normalisation; in the order of ops::Activation.
enum class Act : int { none = 0, relu = 1, gelu = 2, silu = 3 };

// One pass of batch normalisation: out = act(scale * y + shift (+ residual)).
struct NormApply {
  const void* y;
  const void* residual;  // may be null
  void* out;
  Storage storage;
  int64_t pixels, channels;
  const float* scale;
  const float* shift;
  Act act;
};

// The sums that the backward pass of batch normalisation needs, and the masked gradient.
// g = grad * act'(scale * y + shift). ReLU's sign comes from `out` where given, else from
// scale * y + shift, bit-equal to the forward pass; the smooth activations need g to be written.
struct NormReduce {
  const void* grad;
  const void* y;
  const void* out;  // null: recompute
  void* g;          // null: not wanted
  Storage storage;
  int64_t pixels, channels;
  const float* scale;
  const float* shift;
  Act act;
  const float* mean;
  float* sum_g;   // overwritten: sum of g
  float* sum_gy;  // overwritten: sum of g * (y - mean)
};

struct MaxPool;

// Gradient of a convolution's output, made pixel by pixel while it is loaded.
// Without y: the stored gradient itself. With y: batch normalisation's backward map
//   a * g + (b * (y - mean) + d),   g = grad masked by scale * y + shift > 0 where relu.
// With a pool, whose windows tile the images, grad is the gradient behind it; conv_backward makes
// that in front of it (ImageGradient in conv_impl.h), and load_grad knows nothing of pools.
struct GradSource {
  const void* grad;
  Storage storage;
  const void* y;  // null: plain
  const float *a, *b, *d, *mean;
  bool relu;
  const float *scale, *shift;
  const MaxPool* pool = nullptr;
  const uint8_t* index = nullptr;  // of the pool
  // Where conv_backward puts the gradient that it has made, in fp32; null: nowhere. It may be y,
  // of which no pixel is read again then.
  float* kept = nullptr;
};

// Max pooling of one NHWC image. index: for every output the position row * kernel + column of its
// (first) maximum within the window; NaN counts as the largest.
struct MaxPool {
  Storage storage;
  int64_t height, width, channels, kernel, stride, padding, out_height, out_width;
};

struct Isa {
  const char* name;
  int lanes;  // channel counts below must be multiples of it, except in to_float and from_float

  void (*to_float)(const void* src, Storage storage, float* dst, int64_t n);
  void (*from_float)(const float* src, void* dst, Storage storage, int64_t n);

  void (*gemm)(const Gemm&);

  // Winograd F(4x4, 3x3): tile t's frequency f of channel c lies at out[f * stride + c / panel *
  // rows * panel + t * panel + c % panel]. `tiles` point into padded fp32 images whose rows are
  // `row` floats apart.
  void (*winograd_input)(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                         int64_t panel, int64_t rows, float* out, int64_t stride);
  void (*winograd_grad)(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                        int64_t panel, int64_t rows, float* out, int64_t stride);
  // Rows of the output are `row` elements apart; moments may be null.
  void (*winograd_output)(const float* in, int64_t stride, int64_t n, int64_t channels,
                          const OutTile* tiles, int64_t row, Storage storage, Moments* moments);

  // The filter side; weights and their gradients are [out, in, 3, 3], work holds 63 * max(in, out).
  // The last axis of u and du lies in panels: [f, i, o] stands for [f, o / p, i, o % p].
  // u[f, i, o] = (G w[o, i] G')[f] for inputs [first, last).
  void (*winograd_filter)(const float* weight, int64_t in, int64_t out, int64_t first, int64_t last,
                          float* work, float* u);
  // u[f, o, i] = (G rotated(w[o, i]) G')[f] for outputs [first, last): the backward-data filter.
  void (*winograd_filter_rotated)(const float* weight, int64_t in, int64_t out, int64_t first,
                                  int64_t last, float* work, float* u);
  // dw[o, i] = G' du[., i, o] G for inputs [first, last), du being the sum of `parts` consecutive
  // arrays [36, in, out], added in order.
  void (*winograd_filter_grad)(const float* du, int64_t parts, int64_t in, int64_t out,
                               int64_t first, int64_t last, float* work, float* dw);

  void (*moments)(const float* pixels, int64_t n, int64_t channels, Moments* moments);
  void (*norm_apply)(const NormApply&);
  void (*norm_reduce)(const NormReduce&);
  // dst[0 .. n * channels) = gradient of pixels [first, first + n)
  void (*load_grad)(const GradSource&, int64_t first, int64_t n, int64_t channels, float* dst);

  void (*max_pool)(const MaxPool&, const void* x, void* y, uint8_t* index);
  // dx (fp32) = gradient of the image.
  void (*max_pool_grad)(const MaxPool&, const void* dy, const uint8_t* index, float* dx);
};

// Products of bf16 values in pairs, for processors that have them as one instruction. A pair is two
// neighbours along the axis that a product sums over, in 32 bits, the first in the low half; where
// it is counted and addressed it stands for one float. Values are rounded to the nearest, ties to
// even; each sum adds the product of the second halves, then that of the first, rounded each time.
// On tiles, sums have the order that amx_impl.h describes.
struct Bf16Isa {
  const char* name;
  int lanes;

  // As Isa::gemm with pairs in a and b: depth counts pairs, c is fp32.
  void (*gemm)(const Gemm&);

  // dst = values of src, n a multiple of the lanes.
  void (*round)(const float* src, uint16_t* dst, int64_t n);
  // dst[i] = the pair of first[i] and second[i], or of first[i] and 0 where second is null.
  void (*pair)(const float* first, const float* second, float* dst, int64_t n);
  // The same of bf16 values; any n.
  void (*pair_values)(const uint16_t* first, const uint16_t* second, float* dst, int64_t n);

  // As Isa::winograd_input with panel = channels, in pairs of channels: half as many a tile.
  void (*winograd_input)(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                         float* out, int64_t stride);
  // As those of Isa, in pairs of tiles; `rows` counts pairs. An odd tile is paired with zeros.
  void (*winograd_input_pairs)(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                               int64_t panel, int64_t rows, float* out, int64_t stride);
  void (*winograd_grad_pairs)(const float* const* tiles, int64_t n, int64_t row, int64_t channels,
                              int64_t panel, int64_t rows, float* out, int64_t stride);
  // As those of Isa, in pairs of inputs, and of outputs, [first, last) counting pairs; work holds
  // 99 * max(in, out).
  void (*winograd_filter)(const float* weight, int64_t in, int64_t out, int64_t first, int64_t last,
                          float* work, float* u);
  void (*winograd_filter_rotated)(const float* weight, int64_t in, int64_t out, int64_t first,
                                  int64_t last, float* work, float* u);

  void (*keep_tiles)(bool) = nullptr;  // see TilesKept; null: there are none
};

// While it lives, the calling thread's products on tiles leave these as they are for the next one:
// to make them ready takes as long as a small product. Nothing but these kernels may run on the
// thread meanwhile, since other libraries use tiles, too.
class TilesKept {
 public:
  // Of the table, which may be null.
  explicit TilesKept(const Bf16Isa* isa) : keep_(isa != nullptr ? isa->keep_tiles : nullptr) {
    if (keep_ != nullptr) keep_(true);
  }
  ~TilesKept() {
    if (keep_ != nullptr) keep_(false);
  }
  TilesKept(const TilesKept&) = delete;
  TilesKept& operator=(const TilesKept&) = delete;

 private:
  void (*keep_)(bool);
};

// The widest table of this processor whose lanes divide `channels`; null where there is none.
const Isa* isa_for(int64_t channels);
const Bf16Isa* bf16_isa_for(int64_t channels);

// Every table this processor can run, widest first, null-terminated: for tests.
const Isa* const* all_isas();

}  // namespace ductile::nn::kernels
