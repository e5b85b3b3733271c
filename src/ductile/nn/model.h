#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/nn/threads.h"
#include "ductile/spec/job.h"
#include "ductile/spec/models.h"
#include "ductile/spec/sample_inputs.h"

// The interface through which the trainer sees a model, and the table of the built-in models.
// Shapes: B batch, C channels, H height, W width, K classes, T tokens, V vocabulary.
namespace ductile::nn {

// A handle on a live tensor of the model: replacing its storage (set_data) or writing into it
// changes the model.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_norm = false;  // belongs to a normalisation layer; always float
  bool frozen = false;   // a parameter that is never trained: it needs no gradient
  bool blank = false;    // a parameter whose first value was withheld (first_values.h)
};

// What the data says about its samples.
struct ModelInfo {
  int64_t channels = 0, height = 0, width = 0;  // image input
  int64_t num_classes = 0;                      // or the vocabulary
  int64_t sequence_length = 0;                  // token input
  std::vector<spec::SampleInput> inputs = {};   // several inputs, in order
};

// Everything that a model is made from.
struct ModelArgs {
  spec::ModelOptions options;
  ModelInfo info;
  std::string precision = "fp32";  // or "bf16", "fp16": see precision.h
  uint64_t seed = 1;

  // options.num_classes (or vocab_size) if it is given, or else the number in the data; throws
  // invalid_argument if both are absent.
  int64_t num_classes() const;
  int64_t vocab_size() const;
};

struct LossOutput {
  at::Tensor losses;    // [B] float: a loss for each sample, for a language model its mean token
  int64_t correct = 0;  // predictions whose largest logit is the label
  int64_t predictions = 0;  // B, or B * T
};

// A network with named parameters and buffers. One thread at a time uses a model; several models
// may run in several threads. Methods throw Error, or the exceptions of libtorch.
class Model {
 public:
  virtual ~Model();

  // Images [B, C, H, W], channels-last or contiguous, of any floating type -> logits [B, K];
  // tokens [B, T] int64 -> [B, T, V]. In training mode updates the buffers. Throws invalid_argument
  // where the model reads several inputs: see forward() in operators.h.
  virtual at::Tensor forward(const at::Tensor& x) = 0;

  // The parameters in order of registration, under the names that PyTorch (torchvision, Hugging
  // Face) gives them. The tensors are leaves that require gradients, except frozen ones. In half
  // precision all of them, and their gradients, have that type, except those of norm layers.
  virtual std::vector<NamedTensor> parameters();
  // State that is not learnt: running statistics, float.
  virtual std::vector<NamedTensor> buffers();

  // Training mode (the first state) or evaluation mode.
  virtual void train(bool on);

  // logits as forward gives them, labels [B] or [B, T] int64. Cross-entropy unless overridden.
  virtual LossOutput loss(const at::Tensor& logits, const at::Tensor& labels,
                          double label_smoothing);

  // Whether image batches are best laid out channels-last.
  virtual bool prefers_channels_last();

  // Takes over the live options (spec/live_options.h) that the model reads, for the passes from
  // here on. All others are those that it was made with.
  virtual void set_options(const spec::ModelOptions&) {}

  // First values that depend on the data. A model that asks for samples gets so many from all over
  // the training set, or all if there are fewer, as they are in evaluation: [N, C, H, W]. What
  // it makes of them depends on them alone, whatever the number of threads, since each worker
  // begins with it by itself.
  virtual int64_t num_initial_samples() const { return 0; }
  virtual void initialize(const at::Tensor& /*samples*/) {}

 protected:
  bool training() const { return training_; }
  // Adds a leaf that shares the storage of `value`, or, where first values are withheld
  // (first_values.h), has zeros in its place, and returns it; keep the returned handle. Throws
  // conflict if the name is taken.
  at::Tensor register_parameter(std::string name, const at::Tensor& value, bool is_norm = false,
                                bool frozen = false);
  at::Tensor register_buffer(std::string name, const at::Tensor& value, bool is_norm = false);

 private:
  std::vector<NamedTensor> parameters_, buffers_;
  bool training_ = true;
};

// Makes the built-in model named by args.options.name, or, if options.library is set, the model of
// that library (custom_model.h). The first weights depend on the seed and the parameters' names
// alone, not on libtorch's generator or the number of threads. Throws invalid_argument for an
// unknown name (with the nearest known one) or options that do not fit.
std::unique_ptr<Model> make_model(const ModelArgs& args);
std::unique_ptr<Model> make_model(const spec::ModelOptions& options, const ModelInfo& info,
                                  std::string_view precision, uint64_t seed);

// A row of the table of built-in models; the rows are in spec/models.h.
struct ModelEntry {
  std::string_view name;
  std::unique_ptr<Model> (*make)(const ModelArgs&);
  Threads threads;
  std::string_view help;
  spec::ModelInput input;
  int64_t num_parameters;  // at the input `reference`
  std::string_view reference;
};
Table<ModelEntry> model_table();

// Reseeds the generators from which dropout draws. Call before each forward of a virtual rank with
// a value made of (seed, step, virtual rank), so that masks do not depend on who computes them.
void seed_step(uint64_t value);

}  // namespace ductile::nn
