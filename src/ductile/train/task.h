#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ductile/ckpt/tensor.h"
#include "ductile/comm/canonical.h"
#include "ductile/data/dataset.h"
#include "ductile/nn/model.h"
#include "ductile/train/evaluate.h"

namespace ductile::train {

class OwnUpdate;  // own_update.h

// How a task orders the samples of an epoch.
enum class SampleOrder : uint8_t {
  own,         // as it likes: only its places have numbers
  sequential,  // sample i has place i in each epoch
  shuffled,    // data::Permutation says which sample has a place
};

// Some samples of one virtual rank in one step, and what is to be done with them.
struct RankSamples {
  int64_t epoch = 0;
  int64_t first = 0;  // place in the epoch, or in `chosen`
  int64_t count = 0;
  // Where they were chosen: the samples of the step, or these ones alone. Else they are the places
  // [first, first + count) of the epoch.
  std::span<const int64_t> chosen;
  int64_t rank = 0;
  int64_t step = 0;       // protocol step
  double epoch_done = 0;  // how far the run is in its epochs after the step
  uint64_t seed = 0;      // for what is drawn; libtorch's own generators have it already
  bool look = false;      // in evaluation mode; nothing is kept of what the loss changes
  bool each = false;      // the loss of each sample is needed, not only their mean
};

// A figure that is a sum over samples and how many samples it is of, such as hits and predictions.
// The metric is the one divided by the other, over all ranks and steps of a metric line.
struct Ratio {
  double sum = 0;
  double of = 0;
};

struct TaskLoss {
  // [count] float, the loss of each sample; or their mean, a scalar, unless `each` asks for more.
  // It can be differentiated where gradients are recorded.
  at::Tensor loss;
  std::vector<Ratio> metrics;  // in the order of Task::metrics()
};

// The model, the data and the loss of a job that brings its own, such as a Python job: Ductile sees
// neither a sample nor a logit. It takes the place of the data sets and of the model in the
// Ingredients; all else of a job is as ever.
//
// What a task computes is a function of the job, the state that the worker gives it (weights,
// buffers, what is carried) and its arguments alone, on every worker. One thread at a time, but not
// always the same one. Errors are thrown as Error, with all that their user has to know.
class Task {
 public:
  virtual ~Task() = default;

  // `size` is set, and whatever else is known of the samples.
  virtual const data::DatasetInfo& train_info() const = 0;
  virtual const data::DatasetInfo& test_info() const = 0;
  // Of the training set.
  virtual SampleOrder order() const = 0;
  // The names of the ratios that loss() and evaluate() give. "accuracy" is also the accuracy of the
  // run: its best evaluation, its target.
  virtual const std::vector<std::string>& metrics() const = 0;

  // A new model in its first state. It is used for its parameters and buffers and for train(),
  // never for forward(). A model that was made before is not used any more.
  virtual std::unique_ptr<nn::Model> make_model(uint64_t seed) = 0;

  // From now on this worker runs these virtual ranks; what was prepared for others may be dropped.
  virtual void host(const comm::LeafRange& ranks) = 0;
  virtual TaskLoss loss(const RankSamples& samples) = 0;
  // The mean loss over all test samples, in evaluation mode; `each` as in train::evaluate().
  virtual Evaluation evaluate(const std::function<void(int64_t)>& each) = 0;

  // The update rule of a job with optimizer.name = "python"; of the model that was made last.
  virtual OwnUpdate* own_update() { return nullptr; }

  // State that cannot be averaged over ranks, such as counters: after a step it is what virtual
  // rank 0 has made of it. It is handed over as 16-bit pieces, each of which is exact as a float,
  // so it travels among the figures. No pieces: what the new model had.
  virtual int64_t num_carried() const { return 0; }
  virtual void carry_out(std::span<float> /*pieces*/) {}
  virtual void carry_in(std::span<const float> /*pieces*/) {}
  // The same as tensors beside the weights in model.safetensors.
  virtual std::vector<ckpt::TensorView> carried() { return {}; }

  // The model that was made last takes the weights of a file, of which these are all tensors: its
  // parameters and buffers, and of what is carried that which is a part of the model. Throws
  // invalid_argument, which names `file` and the tensor, for weights of another model.
  virtual void take_weights(std::span<const ckpt::TensorView> tensors, const std::string& file) = 0;
};

}  // namespace ductile::train
