#include "ductile/data/resize.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/data/kernels.h"

namespace ductile::data {

ResizeAxis::ResizeAxis(double box_begin, double size, int64_t length, int64_t out) {
  DUCTILE_CHECK(
      size > 0 && box_begin >= 0 && box_begin + size <= static_cast<double>(length) + 1e-6,
      "box {} + {} of {}", box_begin, size, length);
  const double scale = size / static_cast<double>(out);
  const double support = std::max(scale, 1.0);
  const int64_t low = static_cast<int64_t>(std::floor(box_begin));
  const int64_t high =
      std::min(length, std::max(low + 1, static_cast<int64_t>(std::ceil(box_begin + size))));
  taps = static_cast<int>(
      std::min<int64_t>(high - low, static_cast<int64_t>(std::ceil(2 * support)) + 1));
  first.resize(static_cast<size_t>(out));
  weights.assign(static_cast<size_t>(out * taps), 0);
  std::vector<double> w(static_cast<size_t>(taps));
  for (int64_t i = 0; i < out; ++i) {
    const double centre = box_begin + (static_cast<double>(i) + 0.5) * scale;
    const int64_t from = std::clamp<int64_t>(
        static_cast<int64_t>(std::floor(centre - support + 0.5)), low, high - taps);
    double sum = 0;
    for (int k = 0; k < taps; ++k) {
      const double distance = std::abs(static_cast<double>(from + k) + 0.5 - centre) / support;
      sum += w[static_cast<size_t>(k)] = std::max(0.0, 1 - distance);
    }
    // Rounded weights sum to one exactly: what rounding leaves goes to the largest.
    int16_t* const q = weights.data() + i * taps;
    int rest = kOne, largest = 0;
    for (int k = 0; k < taps; ++k) {
      q[k] = static_cast<int16_t>(std::floor(w[static_cast<size_t>(k)] / sum * kOne + 0.5));
      rest -= q[k];
      if (q[k] > q[largest]) largest = k;
    }
    q[largest] = static_cast<int16_t>(q[largest] + rest);
    first[static_cast<size_t>(i)] = static_cast<int32_t>(from);
  }
  begin = first.front();
  end = first.back() + taps;
}

void Resizer::write(const ResizeAxis& columns, const ResizeAxis& rows, int64_t left, bool flip,
                    const RowReader& next_row, const ImageTarget& target) {
  const int64_t width = target.width, channels = target.channels;
  // Column taps in quads as the kernel wants them; mirrored by reading the outputs backwards.
  const int quads = (columns.taps + 3) / 4;
  first_.resize(static_cast<size_t>(width));
  weights_.assign(static_cast<size_t>(width) * static_cast<size_t>(quads) * 16, 0);
  for (int64_t x = 0; x < width; ++x) {
    const int64_t from = flip ? width - 1 - x : x;
    first_[static_cast<size_t>(x)] =
        static_cast<int32_t>(columns.first[static_cast<size_t>(from)] - left);
    const int16_t* const w = columns.weights.data() + from * columns.taps;
    int16_t* const out = weights_.data() + x * quads * 16;
    for (int k = 0; k < columns.taps; ++k) {
      int16_t* const pair = out + k / 4 * 16 + k % 4 / 2 * 8 + k % 2;
      for (int c = 0; c < 4; ++c) pair[2 * c] = w[k];
    }
  }

  const Kernels& kernel = kernels();
  const size_t stride = static_cast<size_t>((width + 3) / 4 * 16);  // whole groups of four pixels
  ring_.resize(stride * static_cast<size_t>(rows.taps));
  tap_rows_.resize(static_cast<size_t>(rows.taps));
  std::array<float, 4> scale = normalizer_.scale;
  for (float& s : scale) s *= 0x1p-21f;

  int32_t ready = rows.begin;  // rows reduced so far end here
  for (int64_t y = 0; y < target.height; ++y) {
    const int32_t first = rows.first[static_cast<size_t>(y)];
    for (; ready < first + rows.taps; ++ready) {
      kernel.horizontal(next_row(), first_.data(), weights_.data(), quads, width,
                        ring_.data() + static_cast<size_t>(ready % rows.taps) * stride);
    }
    for (int k = 0; k < rows.taps; ++k) {
      tap_rows_[static_cast<size_t>(k)] =
          ring_.data() + static_cast<size_t>((first + k) % rows.taps) * stride;
    }
    float* out_c[4] = {};
    for (int64_t c = 0; c < channels; ++c) {
      out_c[c] = target.channels_last ? target.data + y * width * channels + c
                                      : target.data + (c * target.height + y) * width;
    }
    kernel.vertical(tap_rows_.data(), rows.weights.data() + y * rows.taps, rows.taps, width,
                    scale.data(), normalizer_.bias.data(), channels, out_c,
                    target.channels_last ? channels : 1);
  }
}

}  // namespace ductile::data
