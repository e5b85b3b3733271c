#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ductile/data/augment.h"
#include "ductile/data/dataset.h"
#include "ductile/data/decoded_cache.h"
#include "ductile/data/jpeg.h"
#include "ductile/data/pixels.h"
#include "ductile/data/resize.h"

namespace ductile::data {

// Brings one sample from its stored form to what the model sees, in place in a batch. Keeps scratch
// memory: one per thread. The dataset and the augmenter must outlive it.
class SampleWriter {
 public:
  // `cache` may be null; with one, encoded images are always decoded whole.
  SampleWriter(const Dataset& dataset, const Augmenter& augmenter, DecodedCache* cache,
               bool channels_last);

  // Writes channels * height * width floats. Throws data_loss naming the sample's file and offset.
  void write_image(int64_t index, uint64_t epoch, float* out);
  // Writes sequence_length tokens and, one further on, the tokens to be predicted.
  void write_tokens(int64_t index, int64_t* input, int64_t* next);
  // The stored form of a sample of several inputs, until the next call.
  std::span<const std::byte> read_inputs(int64_t index);

 private:
  void write_encoded(const Sample& sample, int64_t index, uint64_t epoch,
                     const ImageTarget& target);
  void write_pixels(const ImageView& image, int64_t index, uint64_t epoch,
                    const ImageTarget& target);
  void write_jpeg_part(const Geometry& geometry, const ImageTarget& target);

  const Dataset& dataset_;
  const Augmenter& augmenter_;
  DecodedCache* cache_;
  bool channels_last_;
  Normalizer normalizer_;
  ExactCrop exact_;
  Resizer resizer_;
  JpegDecoder jpeg_;
  std::vector<std::byte> scratch_;
  std::vector<uint8_t> pixels_, row_;
};

}  // namespace ductile::data
