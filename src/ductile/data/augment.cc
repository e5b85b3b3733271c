#include "ductile/data/augment.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile::data {
namespace {

constexpr uint64_t kAugmentStream = 0x61756720;
constexpr uint64_t kFlips = ~uint64_t{0};  // in place of an epoch, for what is drawn once
constexpr int kTries = 10;
constexpr int64_t kDefaultCrop = 224;

void fill_per_channel(std::vector<double>& values, const std::vector<double>& own, int64_t channels,
                      std::string_view key) {
  if (values.empty()) values = own;
  if (values.size() == 1) values.resize(static_cast<size_t>(channels), values[0]);
  if (static_cast<int64_t>(values.size()) != channels) {
    fail(ErrorCode::invalid_argument, "augment.{} has {} values, the data has {} channels", key,
         values.size(), channels);
  }
}

// exp(x) for |x| <= 3 in plain arithmetic: the same bits whatever the maths library.
double exp_series(double x) {
  double term = 1, sum = 1;
  for (int k = 1; k < 32; ++k) {
    term = term * x / k;
    sum += term;
  }
  return sum;
}

// Whether a training sample is mirrored. Alternating: one draw for a sample, whatever the epoch, so
// that two epochs in a row show both sides of every image; nothing is drawn from `rng`.
bool flips(const spec::AugmentOptions& options, uint64_t seed, uint64_t epoch, uint64_t sample,
           Rng& rng) {
  if (options.flip_mode == "random") return (rng.next() & 1) != 0;
  return ((Rng(seed, kFlips, sample).next() + epoch) & 1) != 0;
}

// By which an image is divided whose short side becomes `resize`, or longer where that would not
// fill an output [C, H, W] that is not square.
double reduction(int64_t height, int64_t width, int64_t resize, const Shape& output) {
  return std::min({static_cast<double>(std::min(height, width)) / static_cast<double>(resize),
                   static_cast<double>(height) / static_cast<double>(output[1]),
                   static_cast<double>(width) / static_cast<double>(output[2])});
}

}  // namespace

spec::AugmentOptions resolve_augment(const spec::AugmentOptions& options,
                                     const DatasetInfo& train) {
  spec::AugmentOptions o = options;
  if (!train.images()) return o;
  fill_per_channel(o.mean, train.mean, train.channels, "mean");
  fill_per_channel(o.std, train.std, train.channels, "std");
  for (const double s : o.std) {
    if (!(s > 0)) fail(ErrorCode::invalid_argument, "augment.std must be positive, not {}", s);
  }
  const bool varies = train.height == 0;
  if (o.crop == 0 && varies) o.crop = kDefaultCrop;
  if (o.crop == 0 && train.height == train.width) o.crop = train.height;
  if (o.random_resized_crop && o.crop == 0) {
    fail(ErrorCode::invalid_argument,
         "augment.random_resized_crop needs augment.crop for images of {} x {}", train.height,
         train.width);
  }
  const bool resizes = varies || o.random_resized_crop || o.resize > 0;
  if (resizes && o.pad > 0) {
    fail(ErrorCode::invalid_argument,
         "augment.pad = {} needs images of one size that are not resized; use "
         "augment.random_resized_crop instead",
         o.pad);
  }
  if (o.resize == 0 && varies) o.resize = o.crop * 8 / 7;
  if (o.resize > 0 && o.resize < o.crop) {
    fail(ErrorCode::invalid_argument, "augment.resize = {} is below augment.crop = {}", o.resize,
         o.crop);
  }
  return o;
}

std::string size_warning(const spec::AugmentOptions& options, const DatasetInfo& train) {
  const bool varies = train.images() && train.channels > 0 && train.height == 0;
  if (!varies || options.crop > 0) return "";
  return fmt::format(
      "the training images differ in size, and augment.crop is 0: all of them become {0} x {0}; "
      "choose another size with augment.crop",
      kDefaultCrop);
}

void check_crop(const spec::AugmentOptions& resolved, const DatasetInfo& train) {
  const int64_t side = std::min(train.height, train.width);
  if (resolved.random_resized_crop || resolved.resize > 0 || resolved.crop <= side) return;
  fail(ErrorCode::invalid_argument,
       "augment.crop = {} is larger than the training images, {} x {}, and only training pads "
       "them; choose a crop of at most {}, or set augment.resize = {} in place of augment.pad",
       resolved.crop, train.height, train.width, side, resolved.crop);
}

spec::AugmentOptions evaluation_augment(spec::AugmentOptions resolved, int64_t short_side) {
  resolved.pad = 0;  // only training pads
  if (resolved.resize > 0) return resolved;
  // Where nothing says how images are resized, those of the training set were of one size.
  const int64_t native = short_side > 0 ? short_side : resolved.crop;
  const bool as_they_are = !resolved.random_resized_crop || native == resolved.crop;
  resolved.resize = as_they_are ? std::max(native, resolved.crop) : resolved.crop * 8 / 7;
  return resolved;
}

Augmenter::Augmenter(const spec::AugmentOptions& options, const DatasetInfo& info, bool training,
                     uint64_t seed)
    : options_(options),
      training_(training),
      seed_(mix(seed, kAugmentStream)),
      log_ratio_(std::log(options.max_ratio)) {
  const int64_t h = options.crop > 0 ? options.crop : info.height;
  const int64_t w = options.crop > 0 ? options.crop : info.width;
  DUCTILE_CHECK(!info.images() || (h > 0 && w > 0), "images of {} x {}", h, w);
  shape_ = {info.channels, h, w};
  if (training && options.random_resized_crop) {
    resizes_ = true;
  } else if (options.random_resized_crop) {
    // Evaluation beside random-resized training: as is where the size fits already.
    resizes_ = !(options.resize == 0 && info.height == h && info.width == w);
    if (resizes_ && options_.resize == 0) options_.resize = options_.crop * 8 / 7;
  } else {
    resizes_ = options.resize > 0;
  }
}

Geometry Augmenter::draw(int64_t height, int64_t width, uint64_t epoch, uint64_t sample) const {
  Rng rng(seed_, epoch, sample);
  const int64_t out_h = shape_[1], out_w = shape_[2];
  Geometry g;
  if (training_ && options_.flip) g.flip = flips(options_, seed_, epoch, sample, rng);
  if (training_ && options_.cutout > 0) {
    const int side = static_cast<int>(options_.cutout);
    const int cx = static_cast<int>(rng.below(static_cast<uint32_t>(out_w)));
    const int cy = static_cast<int>(rng.below(static_cast<uint32_t>(out_h)));
    g.cut_x0 = std::max(0, cx - side / 2);
    g.cut_y0 = std::max(0, cy - side / 2);
    g.cut_x1 = std::min<int>(static_cast<int>(out_w), cx - side / 2 + side);
    g.cut_y1 = std::min<int>(static_cast<int>(out_h), cy - side / 2 + side);
  }
  const auto offset = [&](int64_t room) {
    return static_cast<double>(training_ ? rng.below(static_cast<uint32_t>(room + 1)) : room / 2);
  };

  if (!resizes_) {
    const int64_t pad = training_ ? options_.pad : 0;
    if (out_h > height + 2 * pad || out_w > width + 2 * pad) {
      fail(ErrorCode::invalid_argument,
           "augment.crop: {} x {} does not fit an image of {} x {} with padding {}; with "
           "augment.resize = {} (and augment.pad = 0) each image is resized first",
           out_h, out_w, height, width, pad, std::min(out_h, out_w));
    }
    if (options_.pad_mode == "reflect" && pad >= std::min(height, width)) {
      fail(ErrorCode::invalid_argument,
           "augment.pad = {} cannot be reflected in an image of {} x {}; use a smaller pad or "
           "augment.pad_mode = \"zero\"",
           pad, height, width);
    }
    g.exact = true;
    g.width = static_cast<double>(out_w);
    g.height = static_cast<double>(out_h);
    g.y = offset(height + 2 * pad - out_h) - static_cast<double>(pad);
    g.x = offset(width + 2 * pad - out_w) - static_cast<double>(pad);
    return g;
  }

  if (training_ && options_.random_resized_crop) {
    // A box of a random share of the area and a log-uniform aspect (Szegedy et al., "Going deeper
    // with convolutions", section 6); where ten draws do not fit, the largest allowed centre box.
    const double area = static_cast<double>(height) * static_cast<double>(width);
    for (int k = 0; k < kTries; ++k) {
      const double share = rng.uniform(options_.min_scale, 1);
      const double ratio = exp_series(rng.uniform(-log_ratio_, log_ratio_));
      const int64_t w = static_cast<int64_t>(std::floor(std::sqrt(area * share * ratio) + 0.5));
      const int64_t h = static_cast<int64_t>(std::floor(std::sqrt(area * share / ratio) + 0.5));
      if (w < 1 || h < 1 || w > width || h > height) continue;
      g.width = static_cast<double>(w);
      g.height = static_cast<double>(h);
      g.y = static_cast<double>(rng.below(static_cast<uint32_t>(height - h + 1)));
      g.x = static_cast<double>(rng.below(static_cast<uint32_t>(width - w + 1)));
      g.exact = w == out_w && h == out_h;
      return g;
    }
    const double max_w = options_.max_ratio * static_cast<double>(height);
    const double max_h = options_.max_ratio * static_cast<double>(width);
    g.width = std::floor(std::min<double>(static_cast<double>(width), max_w));
    g.height = std::floor(std::min<double>(static_cast<double>(height), max_h));
    g.x = std::floor((static_cast<double>(width) - g.width) / 2);
    g.y = std::floor((static_cast<double>(height) - g.height) / 2);
    return g;
  }

  // The crop of the image that is so resized, expressed as a box of the source.
  const double scale = reduction(height, width, options_.resize, shape_);
  const int64_t scaled_h = std::max<int64_t>(out_h, std::llround(height / scale));
  const int64_t scaled_w = std::max<int64_t>(out_w, std::llround(width / scale));
  g.width = std::min<double>(static_cast<double>(width), static_cast<double>(out_w) * scale);
  g.height = std::min<double>(static_cast<double>(height), static_cast<double>(out_h) * scale);
  g.y = std::clamp(offset(scaled_h - out_h) * scale, 0.0, static_cast<double>(height) - g.height);
  g.x = std::clamp(offset(scaled_w - out_w) * scale, 0.0, static_cast<double>(width) - g.width);
  g.exact = scale == 1 && height >= out_h && width >= out_w;
  return g;
}

}  // namespace ductile::data
