#pragma once

#include <cstdint>
#include <span>

// The embedded data set: ten classes of 28 x 28 grey images, drawn and not stored. Each digit is a
// few strokes with jittered control points under a random affine map, with random thickness,
// contrast, a stray line and pixel noise. Image i of a split is a pure function of (split, i) and
// uses no library maths beyond sqrt, so every machine draws the same bytes.
//
// Hard enough that a linear classifier stays below 93 %, easy enough for a small convolutional
// network to pass 98 % (figures in README.md).
namespace ductile::data {

constexpr int64_t kDigitSide = 28;
constexpr int64_t kDigitTrain = 20000, kDigitTest = 4000;

// Draws one image into 784 bytes and returns its class. `stream` tells the splits apart.
int draw_digit(uint64_t stream, uint64_t index, std::span<uint8_t> pixels);

}  // namespace ductile::data
