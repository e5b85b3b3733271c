#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ductile/data/augment.h"
#include "ductile/data/dataset.h"
#include "ductile/data/pixels.h"

namespace ductile::data {

// Brings one sample from its stored form to what the model sees, in place in a batch. Keeps scratch
// memory: one per thread. The dataset and the augmenter must outlive it.
class SampleWriter {
 public:
  SampleWriter(const Dataset& dataset, const Augmenter& augmenter, bool channels_last);

  // Writes channels * height * width floats. Throws data_loss naming the sample's file and offset.
  void write_image(int64_t index, uint64_t epoch, float* out);
  // Writes sequence_length tokens and, one further on, the tokens to be predicted.
  void write_tokens(int64_t index, int64_t* input, int64_t* next);

 private:
  const Dataset& dataset_;
  const Augmenter& augmenter_;
  bool channels_last_;
  Normalizer normalizer_;
  ExactCrop exact_;
  std::vector<std::byte> scratch_;
};

}  // namespace ductile::data
