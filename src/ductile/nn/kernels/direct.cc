#include <algorithm>
#include <numeric>
#include <vector>

#include "ductile/nn/kernels/conv_impl.h"
#include "ductile/nn/kernels/scratch.h"

// Convolution of any square kernel and stride as products over padded NHWC images, where a kernel
// row of an output pixel is one contiguous run of kernel * in values.
namespace ductile::nn::kernels {
namespace {

constexpr int64_t kBatchParts = 16;

Padded padded_for(const ConvShape& s, int64_t channels) {
  return {s.height + 2 * s.padding, s.width + 2 * s.padding, s.padding, channels};
}

void load_image(const Isa& isa, const ConvShape& s, const Padded& pad, const void* x, int64_t image,
                Storage storage, float* dst) {
  const char* src =
      static_cast<const char*>(x) + image * s.height * s.width * s.in * bytes_of(storage);
  fill_padded(pad, s.height, s.width, dst, [&](int64_t pixel, int64_t count, float* row) {
    isa.to_float(src + pixel * s.in * bytes_of(storage), storage, row, count * s.in);
  });
}

}  // namespace

void direct_forward(const ConvShape& s, const void* x, const float* weight, Storage storage,
                    void* y, float* mean, float* variance) {
  const Isa& isa = *isa_for(s.out);
  const int64_t oh = s.out_height(), ow = s.out_width(), run = s.kernel * s.in;
  const Padded pad = padded_for(s, s.in);
  const int64_t filter = s.kernel * run * s.out;

  ScratchCutter shared(
      scratch(ScratchKind::shared, filter + 2 * ScratchCutter::rounded(s.batch * s.out) + 32));
  float* w = shared.take(filter);  // [kernel row, kernel column, in, out]
  float* means = shared.take(s.batch * s.out);
  float* m2s = shared.take(s.batch * s.out);
  std::vector<int64_t> counts(s.batch, oh * ow);
  for (int64_t o = 0; o < s.out; ++o)
    for (int64_t i = 0; i < s.in; ++i)
      for (int64_t t = 0; t < s.kernel * s.kernel; ++t)
        w[(t * s.in + i) * s.out + o] = weight[(o * s.in + i) * s.kernel * s.kernel + t];
  if (mean != nullptr) std::fill_n(means, m2s + s.batch * s.out - means, 0.0F);

#pragma omp parallel
  {
    ScratchCutter local(scratch(ScratchKind::local, pad.floats() + oh * ow * s.out + 2 * 16));
    float* padded = local.take(pad.floats());
    float* rounded = local.take(oh * ow * s.out);
#pragma omp for schedule(dynamic, 1)
    for (int64_t b = 0; b < s.batch; ++b) {
      load_image(isa, s, pad, x, b, storage, padded);
      char* target = static_cast<char*>(y) + b * oh * ow * s.out * bytes_of(storage);
      float* image = storage == Storage::f32 ? reinterpret_cast<float*>(target) : rounded;
      for (int64_t i = 0; i < oh; ++i)
        isa.gemm({padded + i * s.stride * pad.row(), s.stride * s.in, 1, pad.row(), w, s.out,
                  run * s.out, image + i * ow * s.out, s.out, ow, s.out, run, s.kernel, false});
      if (mean != nullptr) {
        Moments moments{means + b * s.out, m2s + b * s.out, 0};
        isa.moments(image, oh * ow, s.out, &moments);
      }
      if (storage != Storage::f32) isa.from_float(image, target, storage, oh * ow * s.out);
    }
  }
  if (mean != nullptr) join_moments(means, m2s, counts.data(), s.batch, s.out, mean, variance);
}

void direct_backward(const ConvShape& s, const void* x, const float* weight, const GradSource& grad,
                     void* dx, float* dw) {
  const int64_t wide = (s.in + 7) / 8 * 8;  // channels of dx while it is summed
  const Isa& isa = *isa_for(std::gcd(s.out, wide));
  const int64_t oh = s.out_height(), ow = s.out_width(), run = s.kernel * s.in;
  const int64_t taps = s.kernel * s.kernel, filter = taps * s.in * s.out;
  const int64_t parts = std::min(s.batch, kBatchParts);
  const Padded pad_x = padded_for(s, s.in), pad_dx = padded_for(s, wide);

  ScratchCutter shared(scratch(ScratchKind::shared, taps * s.out * wide + parts * filter + 32));
  float* wt = shared.take(taps * s.out * wide);  // [tap, out, wide]
  float* partial = shared.take(parts * filter);  // [part, kernel row, kernel column, in, out]
  if (dx != nullptr) {
    std::fill_n(wt, taps * s.out * wide, 0.0F);
    for (int64_t o = 0; o < s.out; ++o)
      for (int64_t i = 0; i < s.in; ++i)
        for (int64_t t = 0; t < taps; ++t)
          wt[(t * s.out + o) * wide + i] = weight[(o * s.in + i) * taps + t];
  }

#pragma omp parallel
  {
    ScratchCutter local(
        scratch(ScratchKind::local, pad_x.floats() + pad_dx.floats() + oh * ow * s.out + 3 * 16));
    float* padded_x = local.take(pad_x.floats());
    float* padded_dx = local.take(pad_dx.floats());
    float* g = local.take(oh * ow * s.out);
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = 0; p < parts; ++p) {
      if (dw != nullptr) std::fill_n(partial + p * filter, filter, 0.0F);
      for (int64_t b = part_begin(s.batch, p, parts); b < part_begin(s.batch, p + 1, parts); ++b) {
        isa.load_grad(grad, b * oh * ow, oh * ow, s.out, g);
        if (dw != nullptr) {
          load_image(isa, s, pad_x, x, b, grad.storage, padded_x);
          for (int64_t k = 0; k < s.kernel; ++k)
            isa.gemm({padded_x + k * pad_x.row(), 1, s.stride * s.in, s.stride * pad_x.row(), g,
                      s.out, ow * s.out, partial + p * filter + k * run * s.out, s.out, run, s.out,
                      ow, oh, true});
        }
        if (dx == nullptr) continue;
        std::fill_n(padded_dx, pad_dx.floats(), 0.0F);
        for (int64_t i = 0; i < oh; ++i)
          for (int64_t t = 0; t < taps; ++t)
            isa.gemm(
                {g + i * ow * s.out, s.out, 1, 0, wt + t * s.out * wide, wide, 0,
                 padded_dx + (i * s.stride + t / s.kernel) * pad_dx.row() + t % s.kernel * wide,
                 s.stride * wide, ow, wide, s.out, 1, true});
        char* target =
            static_cast<char*>(dx) + b * s.height * s.width * s.in * bytes_of(grad.storage);
        for (int64_t r = 0; r < s.height; ++r) {
          const float* row = padded_dx + (r + s.padding) * pad_dx.row() + s.padding * wide;
          if (wide == s.in) {
            isa.from_float(row, target, grad.storage, s.width * s.in);
            target += s.width * s.in * bytes_of(grad.storage);
            continue;
          }
          for (int64_t c = 0; c < s.width; ++c) {
            isa.from_float(row + c * wide, target, grad.storage, s.in);
            target += s.in * bytes_of(grad.storage);
          }
        }
      }
    }
    if (dw != nullptr) {
#pragma omp for schedule(static)
      for (int64_t o = 0; o < s.out; ++o)
        for (int64_t i = 0; i < s.in; ++i)
          for (int64_t t = 0; t < taps; ++t) {
            float sum = 0;
            for (int64_t p = 0; p < parts; ++p)
              sum += partial[p * filter + (t * s.in + i) * s.out + o];
            dw[(o * s.in + i) * taps + t] = sum;
          }
    }
  }
}

}  // namespace ductile::nn::kernels
