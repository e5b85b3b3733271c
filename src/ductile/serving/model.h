#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/base/dtype.h"

// What the server needs to know of a model. The module uses no torch: train/served_model.h has the
// models of runs.
namespace ductile::serving {

// What a model is, for the server and for those who ask.
struct ModelCard {
  std::string name;
  int64_t version = 0;  // the step whose weights they are
  std::string digest;   // of the weights
  bool tokens = false;
  Shape input;   // of one sample: [C, H, W], or [T], the longest prompt
  Shape output;  // of one sample: [K] logits; of a language model, of the token that comes next
  std::vector<std::string> class_names;  // may be empty
  size_t row_bytes = 0;                  // of one prepared sample
};

// One sample as a client sent it.
struct Sample {
  enum class Kind { pixels, file, values, tokens };

  Kind kind = Kind::pixels;
  Shape shape;  // pixels: [H, W, C]; values: that of ModelCard::input; tokens: [t]; file: none
  // Bytes 0 to 255; the whole PNG or JPEG file; floats as the model sees them; int64 numbers.
  // Not aligned.
  std::span<const std::byte> bytes;
};

// The weights of one step. One thread at a time uses a model; several may live side by side.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelCard& card() const = 0;
  // Writes row_bytes at `row`, which is aligned to 8 bytes. Throws invalid_argument, or data_loss
  // for an image file that cannot be read.
  virtual void prepare(const Sample& sample, std::byte* row) = 0;
  // The outputs of `count` prepared samples, one after the other.
  virtual void run(const std::byte* rows, int64_t count, float* out) = 0;
};

// Where models come from; used by one thread.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  // The weights of this version, or the newest, checked. Throws not_found, data_loss and others.
  virtual std::unique_ptr<Model> load(std::optional<int64_t> version) = 0;
  // The newest version that could be loaded; none if there is none.
  virtual std::optional<int64_t> newest() = 0;
};

// A model with the numbers of samples that it is run with. What it computes of a sample then has
// the same bits in each of them, at each place, whatever lies beside it.
struct Deployment {
  std::shared_ptr<Model> model;
  std::vector<int64_t> sizes;  // rising

  // The smallest size that holds `count` samples; `count` is at most the largest size.
  int64_t size_for(int64_t count) const;
};

// Kernels may add in another order for another number of samples, or at the edge of a batch. So
// this runs the same random samples in batches of 1, 2, 4 ... `max_batch`, forwards and backwards,
// and keeps the sizes whose bits agree: the largest set of them, and of equal sets the one with the
// smallest size. Throws data_loss where the model computes what is no number.
Deployment deploy(std::unique_ptr<Model> model, int64_t max_batch);

}  // namespace ductile::serving
