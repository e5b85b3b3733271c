#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ductile/base/dtype.h"
#include "ductile/data/dataset.h"
#include "ductile/spec/job.h"

namespace ductile::data {

// Replaces every option that stands for "that of the data set" by its value: crop (the side of
// square images; 224 if sizes vary; for images that are not square it stays 0), resize, and mean
// and std per channel. `train` is the training set; the resolved options are used for both splits.
// Resolving twice changes nothing. Throws invalid_argument naming the key that does not fit the
// data.
spec::AugmentOptions resolve_augment(const spec::AugmentOptions& options, const DatasetInfo& train);

// What is to be known of a job whose training images differ in size and whose augment.crop does not
// say what they are to become; empty: nothing.
std::string size_warning(const spec::AugmentOptions& options, const DatasetInfo& train);

// A crop may be larger than the images where training pads them, but evaluations pad nothing:
// throws invalid_argument for such options, `resolved` against the training set.
void check_crop(const spec::AugmentOptions& resolved, const DatasetInfo& train);

// How images of any size are evaluated: each in a way that depends on its own size alone, and one
// as large as those of the training set as these are. `resolved` against the training set;
// `short_side` of its images, or 0 if they have several (or nobody knows).
spec::AugmentOptions evaluation_augment(spec::AugmentOptions resolved, int64_t short_side);

// The augmentation of one image: a box of the source is resized to the output unless `exact`,
// possibly mirrored, and a rectangle of the output is replaced by the mean.
struct Geometry {
  double x = 0, y = 0, width = 0, height = 0;  // source pixels; outside the image lies padding (0)
  bool exact = false;                          // box and output have the same size: copy
  bool flip = false;
  int cut_x0 = 0, cut_y0 = 0, cut_x1 = 0, cut_y1 = 0;  // output pixels, end exclusive
};

// Draws the geometry of each sample. Pure: the result depends on the arguments only, never on
// earlier draws, so the same sample of the same epoch is augmented in the same way wherever it is
// read. Immutable, any number of threads.
class Augmenter {
 public:
  // `options` resolved, see above; without a crop, images become as large as those of `info`.
  // Evaluation (training = false) takes the centre and draws nothing.
  Augmenter(const spec::AugmentOptions& options, const DatasetInfo& info, bool training,
            uint64_t seed);

  // [channels, height, width] that the model sees.
  const Shape& output_shape() const { return shape_; }
  // Throws invalid_argument if the image is smaller than the crop.
  Geometry draw(int64_t height, int64_t width, uint64_t epoch, uint64_t sample) const;
  const spec::AugmentOptions& options() const { return options_; }

 private:
  spec::AugmentOptions options_;
  Shape shape_;
  bool training_;
  bool resizes_;
  uint64_t seed_;
  double log_ratio_;
};

}  // namespace ductile::data
