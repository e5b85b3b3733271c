#include "ductile/data/digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/data/formats.h"
#include "ductile/data/memory_dataset.h"

namespace ductile::data {
namespace {

constexpr uint64_t kDigitSeed = 0x6475637469676974;
constexpr uint64_t kTrainStream = 1, kTestStream = 2;

struct Point {
  float x, y;
};

// A stroke is a chain of quadratic Bezier curves: start, (control, end) ... ; y points down, the
// glyph fills [-1, 1] x [-1, 1].
using Stroke = std::vector<Point>;
using Glyph = std::vector<Stroke>;

const std::array<Glyph, 10>& glyphs() {
  static const std::array<Glyph, 10> table = {{
      {{{0, -1},
        {-0.75f, -1},
        {-0.7f, 0},
        {-0.65f, 1},
        {0, 1},
        {0.7f, 1},
        {0.7f, 0},
        {0.7f, -1},
        {0, -1}}},
      {{{-0.4f, -0.55f}, {-0.1f, -0.7f}, {0.1f, -1}, {0.1f, 0}, {0.1f, 1}}},
      {{{-0.6f, -0.5f},
        {-0.5f, -1},
        {0.05f, -1},
        {0.65f, -0.95f},
        {0.55f, -0.4f},
        {0.4f, 0.1f},
        {-0.65f, 1},
        {0, 0.95f},
        {0.7f, 0.95f}}},
      {{{-0.55f, -0.8f},
        {0, -1.15f},
        {0.4f, -0.8f},
        {0.7f, -0.2f},
        {-0.1f, -0.05f},
        {0.8f, 0.05f},
        {0.55f, 0.65f},
        {0.2f, 1.2f},
        {-0.6f, 0.75f}}},
      {{{0.1f, -1}, {-0.3f, -0.4f}, {-0.65f, 0.3f}, {0, 0.3f}, {0.7f, 0.3f}},
       {{0.35f, -0.3f}, {0.35f, 0.3f}, {0.3f, 1}}},
      {{{0.55f, -0.95f},
        {0, -0.95f},
        {-0.45f, -0.95f},
        {-0.5f, -0.5f},
        {-0.55f, -0.1f},
        {0.65f, -0.35f},
        {0.6f, 0.4f},
        {0.4f, 1.2f},
        {-0.6f, 0.8f}}},
      {{{0.4f, -0.95f},
        {-0.6f, -0.6f},
        {-0.6f, 0.3f},
        {-0.5f, 1},
        {0.05f, 0.98f},
        {0.6f, 0.9f},
        {0.55f, 0.4f},
        {0.4f, -0.15f},
        {-0.55f, 0.25f}}},
      {{{-0.6f, -0.9f}, {0, -0.95f}, {0.6f, -0.9f}, {0.1f, 0}, {-0.15f, 1}}},
      {{{0.05f, -0.05f},
        {-0.6f, -0.3f},
        {-0.4f, -0.7f},
        {0, -1.2f},
        {0.4f, -0.7f},
        {0.6f, -0.3f},
        {0.05f, -0.05f},
        {-0.8f, 0.3f},
        {-0.5f, 0.75f},
        {0, 1.2f},
        {0.5f, 0.75f},
        {0.8f, 0.3f},
        {0.05f, -0.05f}}},
      {{{0.5f, -0.3f},
        {0.3f, 0.15f},
        {-0.2f, 0.05f},
        {-0.75f, -0.15f},
        {-0.45f, -0.7f},
        {0.1f, -1.25f},
        {0.5f, -0.6f},
        {0.6f, 0.2f},
        {0.25f, 1}}},
  }};
  return table;
}

float between(Rng& rng, float lo, float hi) { return lo + (hi - lo) * rng.uniform(); }

// The brightness of a pen of the given radius along one segment, kept where it is the highest.
void draw_segment(Point a, Point b, float radius, std::array<float, kDigitSide * kDigitSide>& ink) {
  const float reach = radius + 1;
  const int x0 = std::max(0, static_cast<int>(std::floor(std::min(a.x, b.x) - reach)));
  const int y0 = std::max(0, static_cast<int>(std::floor(std::min(a.y, b.y) - reach)));
  const int x1 = std::min<int>(kDigitSide - 1, static_cast<int>(std::max(a.x, b.x) + reach));
  const int y1 = std::min<int>(kDigitSide - 1, static_cast<int>(std::max(a.y, b.y) + reach));
  const float dx = b.x - a.x, dy = b.y - a.y;
  const float length2 = std::max(dx * dx + dy * dy, 1e-6f);
  for (int y = y0; y <= y1; ++y) {
    for (int x = x0; x <= x1; ++x) {
      const float px = static_cast<float>(x) - a.x, py = static_cast<float>(y) - a.y;
      const float t = std::clamp((px * dx + py * dy) / length2, 0.0f, 1.0f);
      const float ex = px - t * dx, ey = py - t * dy;
      const float value = radius + 0.5f - std::sqrt(ex * ex + ey * ey);
      float& cell = ink[static_cast<size_t>(y * kDigitSide + x)];
      cell = std::max(cell, std::min(value, 1.0f));
    }
  }
}

class DigitsDataset final : public MemoryDataset {
 public:
  DigitsDataset(const spec::DataOptions& options, Split split) {
    const bool train = split == Split::train;
    const int64_t size = limited(options, split, train ? kDigitTrain : kDigitTest);
    const uint64_t stream = train ? kTrainStream : kTestStream;
    info_.format = "digits";
    info_.num_classes = 10;
    for (int c = 0; c < 10; ++c) info_.class_names.push_back(std::to_string(c));
    info_.channels = 1;
    info_.height = info_.width = kDigitSide;
    constexpr size_t kBytes = kDigitSide * kDigitSide;
    pixels_.resize(static_cast<size_t>(size) * kBytes);
    labels_.resize(static_cast<size_t>(size));

    const auto draw = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const size_t at = static_cast<size_t>(i);
        auto* out = reinterpret_cast<uint8_t*>(pixels_.data() + at * kBytes);
        labels_[at] = draw_digit(stream, at, {out, kBytes});
      }
    };
    const int64_t threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 16);
    std::vector<std::jthread> helpers;
    for (int64_t t = 1; t < threads; ++t) {
      helpers.emplace_back(draw, size * t / threads, size * (t + 1) / threads);
    }
    draw(0, size / threads);
    helpers.clear();
    finish();
  }
};

}  // namespace

int draw_digit(uint64_t stream, uint64_t index, std::span<uint8_t> pixels) {
  DUCTILE_CHECK(pixels.size() == kDigitSide * kDigitSide, "{} bytes", pixels.size());
  Rng rng(kDigitSeed, stream, index);
  const int digit = static_cast<int>(rng.below(10));

  // x' = A x + b: stretch, rotation and slant as plain matrix entries.
  const float size = between(rng, 6.6f, 9.2f);
  const float turn = between(rng, -0.27f, 0.27f);
  const float ax = size * between(rng, 0.78f, 1.12f), ay = size;
  const float slant = between(rng, -0.25f, 0.25f);
  const float bx = 13.5f + between(rng, -3.0f, 3.0f), by = 13.5f + between(rng, -3.0f, 3.0f);
  const float radius = between(rng, 0.45f, 1.5f);
  const auto place = [&](Point p) {
    const float x = p.x + between(rng, -0.1f, 0.1f), y = p.y + between(rng, -0.1f, 0.1f);
    return Point{bx + ax * x - size * (turn + slant) * y, by + ay * y + size * turn * x};
  };

  std::array<float, kDigitSide * kDigitSide> ink{};
  for (const Stroke& stroke : glyphs()[static_cast<size_t>(digit)]) {
    Point start = place(stroke[0]);
    for (size_t i = 1; i + 1 < stroke.size(); i += 2) {
      const Point control = place(stroke[i]), end = place(stroke[i + 1]);
      constexpr int kPieces = 7;
      Point from = start;
      for (int k = 1; k <= kPieces; ++k) {
        const float t = static_cast<float>(k) / kPieces, s = 1 - t;
        const Point to{s * s * start.x + 2 * s * t * control.x + t * t * end.x,
                       s * s * start.y + 2 * s * t * control.y + t * t * end.y};
        draw_segment(from, to, radius, ink);
        from = to;
      }
      start = end;
    }
  }

  const float contrast = between(rng, 0.55f, 1.0f), ground = between(rng, 0.0f, 0.15f);
  const float noise = between(rng, 0.02f, 0.16f);
  // A faint stray line, half as bright as the digit.
  std::array<float, kDigitSide * kDigitSide> stray{};
  const Point from{between(rng, 0, 27), between(rng, 0, 27)};
  const Point to{from.x + between(rng, -9, 9), from.y + between(rng, -9, 9)};
  draw_segment(from, to, 0.5f, stray);
  for (size_t i = 0; i < pixels.size(); ++i) {
    // Four uniforms of eight bits each: nearly normal, with variance 1/3.
    const uint32_t r = rng.next();
    const float bell =
        static_cast<float>((r & 255) + (r >> 8 & 255) + (r >> 16 & 255) + (r >> 24)) / 255.0f -
        2.0f;
    const float light =
        ground + contrast * std::max(std::max(ink[i], 0.0f), 0.5f * std::max(stray[i], 0.0f));
    const float value = 255.0f * (light + noise * bell) + 0.5f;
    pixels[i] = static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
  }
  return digit;
}

std::shared_ptr<const Dataset> open_digits(const spec::DataOptions& options, Split split) {
  return std::make_shared<DigitsDataset>(options, split);
}

}  // namespace ductile::data
