#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ductile/data/pixels.h"

namespace ductile::data {

// The taps of one axis: output i is the sum over k of weight(i, k) * source[first[i] + k].
// A triangle filter as wide as the reduction (antialiased) or two pixels wide (enlargement), over a
// box of the source in which it never reaches outside. Weights are fixed point and sum to 2^14.
struct ResizeAxis {
  // Output i of `out` covers [begin + i * size / out, begin + (i + 1) * size / out).
  // Requires 0 <= begin, 0 < size, begin + size <= length.
  ResizeAxis(double begin, double size, int64_t length, int64_t out);

  static constexpr int kOne = 1 << 14;
  int taps = 0;                  // of every output; weights beyond the filter are 0
  std::vector<int32_t> first;    // [out]
  std::vector<int16_t> weights;  // [out][taps]
  int32_t begin = 0, end = 0;    // source pixels in use
};

// Gives the rows of an image from top to bottom as 4-byte pixels (R, G, B, anything; grey: the
// value three times), each followed by kRowSlack readable bytes. A row is valid until the next
// call.
using RowReader = std::function<const uint8_t*()>;
constexpr size_t kRowSlack = 64;
// Where in a 64-byte-aligned buffer a row begins that libjpeg-turbo writes and the resize reads at
// once: off the 16- and 32-byte boundaries on which libjpeg-turbo 2.1 writes past the caches (its
// colour conversion then takes non-temporal stores), which made the resize's reads up to 4x slower.
constexpr size_t kRowOffset = 8;

// Resize of a box, flip, normalisation and layout in one pass: rows are reduced as they are
// decoded, and written once, to their place in the batch. Keeps scratch memory: one per thread.
class Resizer {
 public:
  explicit Resizer(const Normalizer& normalizer) : normalizer_(normalizer) {}

  // `columns` and `rows` are the axes of the box; the reader's first row is rows.begin, and pixel 0
  // of a row is column `left` of the axis. Calls the reader once for each row in use.
  void write(const ResizeAxis& columns, const ResizeAxis& rows, int64_t left, bool flip,
             const RowReader& next_row, const ImageTarget& target);

 private:
  Normalizer normalizer_;
  std::vector<int32_t> first_;
  std::vector<int16_t> weights_;
  std::vector<int16_t> ring_;  // the last reduced rows
  std::vector<const int16_t*> tap_rows_;
};

}  // namespace ductile::data
