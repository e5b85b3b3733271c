#pragma once

// What a loader must give, made sample by sample in one thread; for tests.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/data/augment.h"
#include "ductile/data/loader.h"
#include "ductile/data/sample_writer.h"
#include "ductile/data/sampler.h"
#include "ductile/data/testing/images.h"

namespace ductile::data {

// All that a batch holds.
struct Copy {
  std::string input;
  std::vector<int64_t> labels;
  std::vector<uint64_t> samples;
  bool operator==(const Copy&) const = default;

  Copy& operator+=(const Copy& other) {
    input += other.input;
    labels.insert(labels.end(), other.labels.begin(), other.labels.end());
    samples.insert(samples.end(), other.samples.begin(), other.samples.end());
    return *this;
  }
};

inline Copy copy_of(const Batch& b) {
  const int64_t values = num_elements(b.shape);
  const int64_t labels = b.dtype == DType::i64 ? values : b.num_samples;
  const size_t bytes = static_cast<size_t>(values) * size_of(b.dtype);
  return {std::string(reinterpret_cast<const char*>(b.input), bytes),
          {b.labels, b.labels + labels},
          {b.samples.begin(), b.samples.end()}};
}

inline spec::AugmentOptions strong_augment() {
  spec::AugmentOptions a;
  a.pad = 3;
  a.flip = true;
  a.cutout = 6;
  return a;
}

// A small set of each kind: decoded images, files of which two are bad and skipped, tokens.
class SmallSets {
 public:
  struct Kind {
    std::string name;
    std::shared_ptr<const Dataset> dataset;
    spec::AugmentOptions augment;
  };

  SmallSets() {
    spec::DataOptions digits;
    digits.train_limit = 61;
    kinds_.push_back({"digits", open_dataset(digits, Split::train), strong_augment()});

    make_image_folder(folder_.path() / "images", 12);
    const fs::path bad = folder_.path() / "images/train/cat";
    write_file_atomic(bad / "102.jpg", "not an image");
    write_file_atomic(bad / "103.jpg", read_file(bad / "104.jpg").substr(0, 300));
    spec::DataOptions files;
    files.format = "folder";
    files.path = (folder_.path() / "images").string();
    files.on_bad_sample = "skip";
    spec::AugmentOptions crops;
    crops.crop = 16;
    crops.random_resized_crop = true;
    crops.flip = true;
    kinds_.push_back({"folder", open_dataset(files, Split::train), crops});

    std::string numbers;
    for (int i = 0; i < 2 * 400; ++i) numbers += static_cast<char>(i * i % 7 * (i % 2 == 0));
    write_file_atomic(folder_.path() / "t.bin", numbers);
    spec::DataOptions tokens;
    tokens.format = "tokens";
    tokens.path = (folder_.path() / "t.bin").string();
    tokens.tokens.sequence_length = 8;
    kinds_.push_back({"tokens", open_dataset(tokens, Split::train), {}});
  }

  const std::vector<Kind>& kinds() const { return kinds_; }

 private:
  const TempFolder folder_;
  std::vector<Kind> kinds_;
};

class Twin {
 public:
  Twin(std::shared_ptr<const Dataset> dataset, const spec::AugmentOptions& augment, uint64_t seed)
      : dataset_(std::move(dataset)),
        info_(dataset_->info()),
        seed_(seed),
        augmenter_(resolve_augment(augment, info_), info_, true, seed),
        writer_(*dataset_, augmenter_, nullptr, true) {}

  int64_t cursor() const { return epoch_ * info_.size + position_; }
  int64_t epoch() const { return epoch_; }
  void go_to(int64_t cursor) {
    epoch_ = cursor / info_.size;
    position_ = cursor % info_.size;
  }

  // The next step, from where the last one ended.
  Copy step(int64_t batch_size) {
    if (position_ + batch_size > info_.size) {
      ++epoch_;
      position_ = 0;
    }
    const Permutation order(seed_, static_cast<uint64_t>(epoch_), info_.size);
    Copy batch;
    for (int64_t i = 0; i < batch_size; ++i) batch += sample(order[position_++], epoch_);
    return batch;
  }

  // One sample, or the next good one.
  Copy sample(int64_t index, int64_t epoch) {
    while (true) {
      try {
        return read(index, epoch);
      } catch (const Error& e) {
        if (e.code() != ErrorCode::data_loss || !dataset_->skip_bad()) throw;
        index = (index + 1) % info_.size;
      }
    }
  }

 private:
  Copy read(int64_t index, int64_t epoch) {
    Copy copy;
    copy.samples = {static_cast<uint64_t>(index)};
    if (info_.tokens) {
      std::vector<int64_t> tokens(static_cast<size_t>(info_.sequence_length));
      copy.labels.resize(tokens.size());
      writer_.write_tokens(index, tokens.data(), copy.labels.data());
      copy.input.assign(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 8);
    } else {
      std::vector<float> image(static_cast<size_t>(num_elements(augmenter_.output_shape())));
      copy.labels = {dataset_->label(index)};
      writer_.write_image(index, static_cast<uint64_t>(epoch), image.data());
      copy.input.assign(reinterpret_cast<const char*>(image.data()), image.size() * 4);
    }
    return copy;
  }

  const std::shared_ptr<const Dataset> dataset_;
  const DatasetInfo& info_;
  const uint64_t seed_;
  const Augmenter augmenter_;
  SampleWriter writer_;
  int64_t epoch_ = 0, position_ = 0;
};

}  // namespace ductile::data
