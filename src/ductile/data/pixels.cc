#include "ductile/data/pixels.h"

#include <algorithm>
#include <cstring>

#include "ductile/base/error.h"
#include "ductile/data/kernels.h"

namespace ductile::data {
namespace {

// Rows that follow each other are normalised together, about so many values in a call: for a row of
// a small image, a call takes longer than its work.
constexpr int64_t kValuesAtOnce = 1024;

// Where a coordinate outside [0, size) falls when it is mirrored at the first or last pixel.
int64_t reflected(int64_t at, int64_t size) {
  return at < 0 ? -at : at >= size ? 2 * (size - 1) - at : at;
}

// Whether the target's rows are adjacent rows of the image, as they are, from row `y0` on.
bool is_whole_rows(const ImageView& image, const Geometry& geometry, const ImageTarget& target,
                   int64_t y0) {
  return !geometry.flip && geometry.x == 0 && image.width == target.width &&
         image.row_bytes == static_cast<size_t>(target.width * target.channels) && y0 >= 0 &&
         y0 + target.height <= image.height && (target.channels_last || target.channels == 1);
}

}  // namespace

Normalizer::Normalizer(const spec::AugmentOptions& resolved) {
  for (size_t c = 0; c < resolved.mean.size() && c < scale.size(); ++c) {
    if (resolved.normalize) {
      scale[c] = static_cast<float>(1 / (255 * resolved.std[c]));
      bias[c] = static_cast<float>(-resolved.mean[c] / resolved.std[c]);
    } else {
      scale[c] = static_cast<float>(1.0 / 255);
      fill[c] = static_cast<float>(resolved.mean[c]);
    }
  }
}

void ExactCrop::repeat_constants(size_t values, size_t channels) {
  if (scales_.size() == values) return;
  scales_.resize(values);
  biases_.resize(values);
  for (size_t i = 0; i < values; ++i) {
    scales_[i] = normalizer_.scale[i % channels];
    biases_[i] = normalizer_.bias[i % channels];
  }
}

void ExactCrop::write_rows(const uint8_t* from, int64_t rows, int64_t at_once, size_t row_values,
                           float* to) const {
  const Kernels& k = kernels();
  for (int64_t y = 0; y < rows; y += at_once) {
    const size_t first = static_cast<size_t>(y) * row_values;
    k.normalize(from + first, scales_.data(), biases_.data(), to + first,
                static_cast<size_t>(std::min(at_once, rows - y)) * row_values);
  }
}

void ExactCrop::write(const ImageView& image, const Geometry& geometry, const ImageTarget& target) {
  const int64_t channels = target.channels, width = target.width;
  DUCTILE_CHECK(image.channels == channels && image.step == channels, "channels differ");
  const size_t row_values = static_cast<size_t>(width * channels);
  const int64_t rows_at_once = std::max<int64_t>(1, kValuesAtOnce / (width * channels));
  repeat_constants(static_cast<size_t>(rows_at_once) * row_values, static_cast<size_t>(channels));
  if (const auto y0 = static_cast<int64_t>(geometry.y);
      is_whole_rows(image, geometry, target, y0)) {
    write_rows(image.row(y0), target.height, rows_at_once, row_values, target.data);
  } else {
    write_by_row(image, geometry, target, row_values);
  }
  apply_cutout(geometry, normalizer_, target);
}

void ExactCrop::write_by_row(const ImageView& image, const Geometry& geometry,
                             const ImageTarget& target, size_t row_values) {
  const int64_t channels = target.channels, width = target.width;
  const int64_t x0 = static_cast<int64_t>(geometry.x), y0 = static_cast<int64_t>(geometry.y);
  // Columns of the target that lie inside the image.
  const int64_t left = std::clamp<int64_t>(-x0, 0, width);
  const int64_t right = std::clamp<int64_t>(image.width - x0, left, width);
  const bool whole = left == 0 && right == width;
  const Kernels& k = kernels();
  row_.assign(2 * row_values, 0);
  uint8_t* const padded = row_.data();
  uint8_t* const mirrored = row_.data() + row_values;

  for (int64_t y = 0; y < target.height; ++y) {
    const int64_t sy = reflect_ ? reflected(y + y0, image.height) : y + y0;
    const uint8_t* row = padded;
    if (whole && sy >= 0 && sy < image.height) {
      row = image.row(sy) + x0 * channels;
    } else if (reflect_) {
      for (int64_t x = 0; x < width; ++x) {
        std::memcpy(padded + x * channels,
                    image.row(sy) + reflected(x + x0, image.width) * channels,
                    static_cast<size_t>(channels));
      }
    } else if (sy < 0 || sy >= image.height || left == right) {
      std::memset(padded, 0, row_values);
    } else {
      std::memset(padded, 0, row_values);
      std::memcpy(padded + left * channels, image.row(sy) + (left + x0) * channels,
                  static_cast<size_t>((right - left) * channels));
    }
    if (geometry.flip) {
      k.mirror(row, mirrored, width, channels);
      row = mirrored;
    }
    if (target.channels_last || channels == 1) {
      k.normalize(row, scales_.data(), biases_.data(),
                  target.data + static_cast<size_t>(y) * row_values, row_values);
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        float* const out = target.data + (c * target.height + y) * width;
        const float scale = normalizer_.scale[static_cast<size_t>(c)];
        const float bias = normalizer_.bias[static_cast<size_t>(c)];
        for (int64_t x = 0; x < width; ++x) {
          out[x] = static_cast<float>(row[x * channels + c]) * scale + bias;
        }
      }
    }
  }
}

void apply_cutout(const Geometry& geometry, const Normalizer& normalizer,
                  const ImageTarget& target) {
  for (int64_t y = geometry.cut_y0; y < geometry.cut_y1; ++y) {
    for (int64_t x = geometry.cut_x0; x < geometry.cut_x1; ++x) {
      for (int64_t c = 0; c < target.channels; ++c) {
        const int64_t at = target.channels_last ? (y * target.width + x) * target.channels + c
                                                : (c * target.height + y) * target.width + x;
        target.data[at] = normalizer.fill[static_cast<size_t>(c)];
      }
    }
  }
}

}  // namespace ductile::data
