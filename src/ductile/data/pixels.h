#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ductile/data/augment.h"

namespace ductile::data {

// A decoded image: rows of interleaved bytes. `step` bytes from pixel to pixel (4 for RGBX).
struct ImageView {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0;
  int64_t channels = 0;
  int64_t step = 0;
  size_t row_bytes = 0;

  const uint8_t* row(int64_t y) const { return data + static_cast<size_t>(y) * row_bytes; }
};

// From a byte to what the model sees: byte * scale + bias, rounded after each of the two
// operations, so that every instruction set gives the same bits.
struct Normalizer {
  explicit Normalizer(const spec::AugmentOptions& resolved);
  std::array<float, 4> scale{}, bias{};
  std::array<float, 4> fill{};  // what cutout writes: the mean
};

// Where a finished image goes: [height][width][channels] or [channels][height][width] floats.
struct ImageTarget {
  float* data = nullptr;
  int64_t channels = 0, height = 0, width = 0;
  bool channels_last = true;
};

// Copies the box of an exact geometry (no resize) with padding, flip and normalisation. Padding is
// zero, or the image reflected at its border pixels (which are not repeated): then the box reaches
// less than the image's size beyond it. Image and target have the same number of channels; step ==
// channels. Keeps scratch memory: one per thread.
class ExactCrop {
 public:
  ExactCrop(const Normalizer& normalizer, const spec::AugmentOptions& options)
      : normalizer_(normalizer), reflect_(options.pad_mode == "reflect") {}
  void write(const ImageView& image, const Geometry& geometry, const ImageTarget& target);

 private:
  void repeat_constants(size_t values, size_t channels);
  // Of adjacent rows of `row_values` bytes, `at_once` in a call.
  void write_rows(const uint8_t* from, int64_t rows, int64_t at_once, size_t row_values,
                  float* to) const;
  void write_by_row(const ImageView& image, const Geometry& geometry, const ImageTarget& target,
                    size_t row_values);

  Normalizer normalizer_;
  bool reflect_;
  std::vector<uint8_t> row_;
  std::vector<float> scales_, biases_;  // the constants, repeated along some rows
};

// Fills the geometry's cut rectangle of a finished image.
void apply_cutout(const Geometry& geometry, const Normalizer& normalizer,
                  const ImageTarget& target);

}  // namespace ductile::data
