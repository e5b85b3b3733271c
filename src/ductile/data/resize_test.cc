#include "ductile/data/resize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace ductile::data {
namespace {

Normalizer plain_bytes() {
  spec::AugmentOptions o;
  o.mean = {0, 0, 0};
  o.std = {1.0 / 255, 1.0 / 255, 1.0 / 255};
  return Normalizer(o);
}

// The same filter in doubles, two-dimensional and slow.
double twin(const std::vector<uint8_t>& rgbx, int64_t w, int64_t h, double bx, double by, double bw,
            double bh, int64_t out_w, int64_t out_h, int64_t x, int64_t y, int c) {
  const auto weights = [](double begin, double size, int64_t length, int64_t out, int64_t i) {
    const double scale = size / double(out), support = std::max(1.0, scale);
    const double centre = begin + (double(i) + 0.5) * scale;
    std::vector<double> w(static_cast<size_t>(length));
    double sum = 0;
    const int64_t low = int64_t(std::floor(begin));
    const int64_t high = std::min(length, std::max(low + 1, int64_t(std::ceil(begin + size))));
    for (int64_t k = low; k < high; ++k) {
      sum += w[size_t(k)] = std::max(0.0, 1 - std::abs(double(k) + 0.5 - centre) / support);
    }
    for (double& v : w) v /= sum;
    return w;
  };
  const auto wx = weights(bx, bw, w, out_w, x), wy = weights(by, bh, h, out_h, y);
  double sum = 0;
  for (int64_t j = 0; j < h; ++j) {
    for (int64_t i = 0; i < w; ++i) {
      sum += wx[size_t(i)] * wy[size_t(j)] * rgbx[size_t((j * w + i) * 4 + c)];
    }
  }
  return sum;
}

RC_GTEST_PROP(Resizer, MatchesTheSlowTwin, ()) {
  const int64_t w = *rc::gen::inRange<int64_t>(1, 50), h = *rc::gen::inRange<int64_t>(1, 50);
  const int64_t ow = *rc::gen::inRange<int64_t>(1, 24), oh = *rc::gen::inRange<int64_t>(1, 24);
  const auto part = [](int64_t n) { return double(*rc::gen::inRange<int64_t>(1, 8 * n + 1)) / 8; };
  const double bw = part(w), bh = part(h);
  const double bx = (double(w) - bw) * *rc::gen::inRange(0, 9) / 8;
  const double by = (double(h) - bh) * *rc::gen::inRange(0, 9) / 8;
  const bool flip = *rc::gen::arbitrary<bool>(), last = *rc::gen::arbitrary<bool>();
  const auto image = *rc::gen::container<std::vector<uint8_t>>(static_cast<size_t>(w * h * 4),
                                                               rc::gen::arbitrary<uint8_t>());

  const ResizeAxis columns(bx, bw, w, ow), rows(by, bh, h, oh);
  Resizer resizer(plain_bytes());
  std::vector<float> out(static_cast<size_t>(ow * oh * 3));
  std::vector<uint8_t> row(static_cast<size_t>(w * 4) + kRowSlack);
  int64_t y = rows.begin;
  resizer.write(columns, rows, 0, flip,
                [&] {
                  RC_ASSERT(y < rows.end);
                  std::copy_n(image.begin() + y++ * w * 4, w * 4, row.begin());
                  return row.data();
                },
                {out.data(), 3, oh, ow, last});
  for (int64_t i = 0; i < oh; ++i) {
    for (int64_t j = 0; j < ow; ++j) {
      for (int c = 0; c < 3; ++c) {
        const double want = twin(image, w, h, bx, by, bw, bh, ow, oh, flip ? ow - 1 - j : j, i, c);
        const size_t at = size_t(last ? (i * ow + j) * 3 + c : (c * oh + i) * ow + j);
        RC_ASSERT(std::abs(out[at] - want) < 0.1);  // of 255
      }
    }
  }
}

TEST(ResizeAxis, WeightsSumToOneAndStayInside) {
  for (const double size : {0.3, 1.0, 7.5, 100.0, 333.0}) {
    for (const int64_t out : {1, 7, 224}) {
      const ResizeAxis axis(333 - size, size, 333, out);
      for (int64_t i = 0; i < out; ++i) {
        int sum = 0;
        for (int k = 0; k < axis.taps; ++k) sum += axis.weights[size_t(i * axis.taps + k)];
        EXPECT_EQ(sum, ResizeAxis::kOne);
        EXPECT_GE(axis.first[size_t(i)], 0);
        EXPECT_LE(axis.first[size_t(i)] + axis.taps, 333);
      }
    }
  }
}

TEST(Resizer, KeepsAnImageOfTheRightSize) {
  const int64_t side = 9;
  std::vector<uint8_t> image(side * side * 4 + kRowSlack);
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<uint8_t>(i * 37);
  const ResizeAxis axis(0, side, side, side);
  Resizer resizer(plain_bytes());
  std::vector<float> out(side * side * 3);
  int64_t y = 0;
  resizer.write(axis, axis, 0, false, [&] { return image.data() + y++ * side * 4; },
                {out.data(), 3, side, side, true});
  for (int64_t i = 0; i < side * side; ++i) {
    for (int64_t c = 0; c < 3; ++c) EXPECT_EQ(out[size_t(i * 3 + c)], image[size_t(i * 4 + c)]);
  }
}

}  // namespace
}  // namespace ductile::data
