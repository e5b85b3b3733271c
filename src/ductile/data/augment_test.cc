#include "ductile/data/augment.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/data/pixels.h"

namespace ductile::data {
namespace {

DatasetInfo info(int64_t height, int64_t width, int64_t channels = 3) {
  DatasetInfo i;
  i.channels = channels;
  i.height = height;
  i.width = width;
  i.mean.assign(size_t(channels), 0.5);
  i.std.assign(size_t(channels), 0.25);
  return i;
}

TEST(ResolveAugment, FillsWhatTheDataKnows) {
  const auto o = resolve_augment({}, info(32, 32));
  EXPECT_EQ(o.crop, 32);
  EXPECT_EQ(o.mean, (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(resolve_augment(o, info(10, 10)).crop, 32);
  EXPECT_EQ(resolve_augment({}, info(0, 0)).crop, 224);
  EXPECT_EQ(resolve_augment({}, info(0, 0)).resize, 256);
  EXPECT_EQ(resolve_augment({}, info(20, 30)).crop, 0);
}

TEST(SizeWarning, IsOfImagesThatDifferWhereNoCropIsChosen) {
  spec::AugmentOptions o;
  EXPECT_NE(size_warning(o, info(0, 0)).find("become 224 x 224; choose another"),
            std::string::npos);
  EXPECT_EQ(size_warning(o, info(16, 16)), "");
  EXPECT_EQ(size_warning(o, {}), "") << "of a program's own data";
  o.crop = 32;
  EXPECT_EQ(size_warning(o, info(0, 0)), "");
}

TEST(ResolveAugment, NamesWhatDoesNotFit) {
  const auto message = [](spec::AugmentOptions o, DatasetInfo i) {
    try {
      resolve_augment(o, i);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  spec::AugmentOptions o;
  o.mean = {0.1, 0.2};
  EXPECT_NE(message(o, info(32, 32)).find("augment.mean has 2 values"), std::string::npos);
  o = {};
  o.std = {0};
  EXPECT_NE(message(o, info(32, 32)).find("augment.std"), std::string::npos);
  o = {};
  o.pad = 4;
  EXPECT_NE(message(o, info(0, 0)).find("augment.pad"), std::string::npos);
  o = {};
  o.crop = 64;
  o.resize = 32;
  EXPECT_NE(message(o, info(0, 0)).find("augment.resize"), std::string::npos);
}

// The sizes of a few images were looked at, and this one is smaller.
TEST(Augmenter, SaysWhatHelpsWhereACropDoesNotFitAnImage) {
  spec::AugmentOptions o = resolve_augment({}, info(32, 32));
  try {
    Augmenter(o, info(32, 32), true, 1).draw(30, 20, 0, 0);
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("32 x 32 does not fit an image of 30 x 20"),
              std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("with augment.resize = 32"), std::string::npos);
  }
  o.resize = 32;
  const Geometry g =
      Augmenter(resolve_augment(o, info(32, 32)), info(32, 32), true, 1).draw(30, 20, 0, 0);
  EXPECT_EQ(g.width, 20);
  EXPECT_EQ(g.height, 20);
}

// Half of the samples are mirrored in the first epoch, and each of them in every other one.
TEST(Augmenter, AlternatingFlipsShowTheOtherSideInEachNextEpoch) {
  spec::AugmentOptions o;
  o.flip = true;
  o.flip_mode = "alternating";
  const auto resolved = resolve_augment(o, info(32, 32));
  const Augmenter a(resolved, info(32, 32), true, 5), other(resolved, info(32, 32), true, 6);
  int mirrored = 0, same = 0;
  for (uint64_t sample = 0; sample < 2000; ++sample) {
    const bool first = a.draw(32, 32, 0, sample).flip;
    mirrored += first;
    same += first == other.draw(32, 32, 0, sample).flip;
    for (uint64_t epoch = 1; epoch < 5; ++epoch) {
      ASSERT_EQ(a.draw(32, 32, epoch, sample).flip, first != (epoch % 2 == 1)) << sample;
    }
  }
  EXPECT_NEAR(mirrored, 1000, 100);
  EXPECT_NEAR(same, 1000, 100) << "the seed decides";
  EXPECT_FALSE(Augmenter(resolved, info(32, 32), false, 5).draw(32, 32, 1, 0).flip);
}

RC_GTEST_PROP(Augmenter, RandomResizedCropStaysInsideAndInRange, (uint64_t seed, uint64_t sample)) {
  const int64_t h = *rc::gen::inRange<int64_t>(1, 600), w = *rc::gen::inRange<int64_t>(1, 600);
  spec::AugmentOptions o;
  o.random_resized_crop = true;
  o.crop = 224;
  o.flip = true;
  const Augmenter a(resolve_augment(o, info(0, 0)), info(0, 0), true, seed);
  const Geometry g = a.draw(h, w, 3, sample);
  RC_ASSERT(g.x >= 0 && g.y >= 0 && g.width >= 1 && g.height >= 1);
  RC_ASSERT(g.x + g.width <= double(w) && g.y + g.height <= double(h));
  const Geometry again = a.draw(h, w, 3, sample);
  RC_ASSERT(g.x == again.x && g.width == again.width && g.flip == again.flip);
}

TEST(Augmenter, RandomResizedCropHasTheRightSpread) {
  spec::AugmentOptions o;
  o.random_resized_crop = true;
  o.crop = 224;
  const Augmenter a(resolve_augment(o, info(0, 0)), info(0, 0), true, 1);
  double area = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const Geometry g = a.draw(1000, 1000, 0, i);
    area += g.width * g.height / 1e6 / 4000;
    EXPECT_LE(g.width / g.height, 4.0 / 3 * 1.02);
    EXPECT_GE(g.width / g.height, 0.75 / 1.02);
  }
  // Uniform in [0.08, 1], less the few largest boxes that do not fit.
  EXPECT_NEAR(area, 0.51, 0.03);
}

TEST(Augmenter, PadAndCropReachEveryOffset) {
  spec::AugmentOptions o;
  o.pad = 2;
  o.flip = true;
  const Augmenter a(resolve_augment(o, info(8, 8)), info(8, 8), true, 1);
  std::set<std::pair<double, double>> seen;
  int flips = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const Geometry g = a.draw(8, 8, 0, i);
    EXPECT_TRUE(g.exact);
    seen.emplace(g.x, g.y);
    flips += g.flip;
  }
  EXPECT_EQ(seen.size(), 25u);
  EXPECT_NEAR(flips, 500, 80);
}

// An image as large as those of the training set is taken as in any evaluation, and each other one
// fills what the model reads.
RC_GTEST_PROP(EvaluationAugment, TakesTheTrainingsSizeAsItIsAndFillsTheOutputFromOthers, ()) {
  const int64_t h = *rc::gen::inRange<int64_t>(4, 40);
  const int64_t w = *rc::gen::arbitrary<bool>() ? h : *rc::gen::inRange<int64_t>(4, 40);
  spec::AugmentOptions o;
  if (*rc::gen::arbitrary<bool>()) o.crop = *rc::gen::inRange<int64_t>(1, std::min(h, w) + 1);
  if (h == w || o.crop > 0) o.random_resized_crop = *rc::gen::arbitrary<bool>();
  o = resolve_augment(o, info(h, w));
  const Augmenter plain(o, info(h, w), false, 1);
  const Augmenter any(evaluation_augment(o, std::min(h, w)), info(h, w), false, 1);
  RC_ASSERT(any.output_shape() == plain.output_shape());
  const auto same = [](const Geometry& a, const Geometry& b) {
    return a.x == b.x && a.y == b.y && a.width == b.width && a.height == b.height &&
           a.exact == b.exact;
  };
  if (h == w || !o.random_resized_crop) {
    RC_ASSERT(same(any.draw(h, w, 0, 0), plain.draw(h, w, 0, 0)));
  }
  const int64_t y = *rc::gen::inRange<int64_t>(1, 90), x = *rc::gen::inRange<int64_t>(1, 90);
  const Geometry g = any.draw(y, x, 0, 0);
  RC_ASSERT(g.x >= 0 && g.x + g.width <= double(x) + 1e-9);
  RC_ASSERT(g.y >= 0 && g.y + g.height <= double(y) + 1e-9);
  // The box has the output's aspect: nothing is distorted.
  const double across = g.width / double(any.output_shape()[2]);
  RC_ASSERT(std::abs(g.height / double(any.output_shape()[1]) - across) < 1e-9 * across);
}

TEST(Augmenter, EvaluationTakesTheCentre) {
  spec::AugmentOptions o;
  o.random_resized_crop = true;
  o.crop = 224;
  o.flip = true;
  const Augmenter a(resolve_augment(o, info(0, 0)), info(0, 0), false, 1);
  const Geometry g = a.draw(512, 1024, 0, 5);
  EXPECT_FALSE(g.flip);
  EXPECT_EQ(g.width, 448);  // 224 of 256 of a short side of 512
  EXPECT_EQ(g.height, 448);
  EXPECT_EQ(g.y, 32);
  EXPECT_EQ(g.x, 288);
}

// Pad, crop, flip, cutout and normalise, pixel by pixel.
RC_GTEST_PROP(ExactCrop, MatchesTheSlowTwin, (uint64_t sample)) {
  const int64_t channels = *rc::gen::element<int64_t>(1, 3);
  const int64_t h = *rc::gen::inRange<int64_t>(6, 40), w = *rc::gen::inRange<int64_t>(6, 40);
  spec::AugmentOptions o;
  o.crop = *rc::gen::inRange<int64_t>(1, 7);
  o.pad = *rc::gen::inRange<int64_t>(0, 5);
  o.pad_mode = *rc::gen::element<std::string>("zero", "reflect");
  o.flip = true;
  o.cutout = *rc::gen::inRange<int64_t>(0, 4);
  o = resolve_augment(o, info(h, w, channels));
  const Augmenter a(o, info(h, w, channels), true, 3);
  const Geometry g = a.draw(h, w, 1, sample);
  const auto image = *rc::gen::container<std::vector<uint8_t>>(size_t(h * w * channels),
                                                               rc::gen::arbitrary<uint8_t>());
  const bool last = *rc::gen::arbitrary<bool>();
  std::vector<float> out(size_t(o.crop * o.crop * channels));
  const Normalizer n(o);
  ExactCrop(n, o).write({image.data(), h, w, channels, channels, size_t(w * channels)}, g,
                        {out.data(), channels, o.crop, o.crop, last});
  for (int64_t y = 0; y < o.crop; ++y) {
    for (int64_t x = 0; x < o.crop; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        int64_t sx = int64_t(g.x) + (g.flip ? o.crop - 1 - x : x), sy = int64_t(g.y) + y;
        if (o.pad_mode == "reflect") {
          sx = w - 1 - std::abs(w - 1 - std::abs(sx));
          sy = h - 1 - std::abs(h - 1 - std::abs(sy));
        }
        const bool inside = sx >= 0 && sy >= 0 && sx < w && sy < h;
        float want = (inside ? float(image[size_t((sy * w + sx) * channels + c)]) : 0.0f) *
                         n.scale[size_t(c)] +
                     n.bias[size_t(c)];
        if (x >= g.cut_x0 && x < g.cut_x1 && y >= g.cut_y0 && y < g.cut_y1) want = 0;
        const int64_t at = last ? (y * o.crop + x) * channels + c : (c * o.crop + y) * o.crop + x;
        RC_ASSERT(std::abs(out[size_t(at)] - want) < 1e-6f);
      }
    }
  }
}

// Rows that are adjacent in image and target are normalised together: the same bits as one by one.
RC_GTEST_PROP(ExactCrop, TakesWholeRowsTogetherWithTheBitsOfSingleOnes, ()) {
  const int64_t channels = *rc::gen::element<int64_t>(1, 3);
  const int64_t w = *rc::gen::inRange<int64_t>(1, 40);
  const int64_t h = *rc::gen::inRange<int64_t>(1, 90), above = *rc::gen::inRange<int64_t>(0, 3);
  const size_t row = static_cast<size_t>(w * channels), gap = *rc::gen::inRange<size_t>(0, 2);
  const auto image = *rc::gen::container<std::vector<uint8_t>>(
      (row + gap) * static_cast<size_t>(h + above), rc::gen::arbitrary<uint8_t>());
  const Normalizer n(resolve_augment({}, info(h, w, channels)));
  ExactCrop crop(n, {});
  Geometry g;
  g.exact = true;
  g.y = static_cast<double>(above);
  std::vector<float> out(row * static_cast<size_t>(h) + 1, 7);
  crop.write({image.data(), h + above, w, channels, channels, row + gap}, g,
             {out.data(), channels, h, w, true});
  RC_ASSERT(out.back() == 7);
  for (size_t y = 0; y < static_cast<size_t>(h); ++y) {
    for (size_t i = 0; i < row; ++i) {
      const size_t c = i % static_cast<size_t>(channels);
      const uint8_t byte = image[(y + static_cast<size_t>(above)) * (row + gap) + i];
      const float scaled = static_cast<float>(byte) * n.scale[c];
      RC_ASSERT(out[y * row + i] == scaled + n.bias[c]);
    }
  }
}

}  // namespace
}  // namespace ductile::data
