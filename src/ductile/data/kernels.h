#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ductile::data {

// The inner loops of the image path, one table an instruction set. All tables give the same bits:
// the resize works in integers, and floats see one multiplication and one addition, each rounded.
//
// Resize, fixed point: weights have 14 fractional bits, rows after the horizontal pass 7; the
// vertical pass leaves 21.
struct Kernels {
  std::string_view name;  // "scalar", "avx2", "avx512"

  // out[i] = in[i] * scale[i] + bias[i]
  void (*normalize)(const uint8_t* in, const float* scale, const float* bias, float* out, size_t n);
  // Reverses the order of `width` pixels of `channels` bytes.
  void (*mirror)(const uint8_t* in, uint8_t* out, int64_t width, int64_t channels);
  // One row of 4-byte pixels to `out_width` pixels of four 16-bit values:
  // out[x] = (sum over k < 4 * quads of in[first[x] + k] * weight(x, k) + 64) >> 7.
  // weights: for each x and quad of taps 16 values, 0101 0101 2323 2323 (tap numbers within the
  // quad). Reads up to 4 * quads pixels from first[x]: the row needs that much padding.
  void (*horizontal)(const uint8_t* in, const int32_t* first, const int16_t* weights, int quads,
                     int64_t out_width, int16_t* out);
  // Combines `taps` rows into one row of normalised floats: pixel x, channel c is
  // float(sum over k of rows[k][4x + c] * weights[k]) * scale[c] + bias[c].
  // out_c: where channel c of pixel 0 goes; `step` floats from pixel to pixel: 1 (planes), or
  // `channels` (interleaved, out_c[c] == out_c[0] + c). channels <= 4. Rows are readable up to a
  // multiple of four pixels.
  void (*vertical)(const int16_t* const* rows, const int16_t* weights, int taps, int64_t width,
                   const float* scale, const float* bias, int64_t channels, float* const* out_c,
                   int64_t step);
};

// The best table of this machine; chosen at the first call.
const Kernels& kernels();
const Kernels& scalar_kernels();
// nullptr where the machine (or the compiler's target) has no such instructions.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace ductile::data
