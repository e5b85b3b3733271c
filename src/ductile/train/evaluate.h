#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/data/loader.h"
#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"
#include "ductile/spec/job.h"
#include "ductile/train/class_scores.h"

namespace ductile::train {

// Means over an evaluation set.
struct Evaluation {
  double loss = 0;
  double accuracy = 0;  // of predictions: samples, or tokens; not a number: the job measures none
  int64_t num_samples = 0;
  std::map<std::string, double> metrics;  // those of a task (task.h) but the accuracy
  // Of a classifier: a model with one row of logits for each sample.
  std::optional<ClassCounts> classes;

  bool operator==(const Evaluation&) const = default;

  double perplexity() const;  // exp(loss)
  // By the accuracy, or where there is none by the loss.
  bool better_than(const Evaluation& other) const;
  // All of it, as a state keeps it and as workers send it to each other.
  nlohmann::json to_json() const;
  static Evaluation from_json(const nlohmann::json& value);
  // What people read: the means, and of the classes the worst one with its name.
  nlohmann::json describe(std::span<const std::string> class_names) const;
};

// A model is in evaluation mode while this object lives, and in training mode after it.
class EvaluationMode {
 public:
  explicit EvaluationMode(nn::Model& model) : model_(model) { model_.train(false); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode() { model_.train(true); }

 private:
  nn::Model& model_;
};

// What a model gives for its inputs, in order.
using Forward = std::function<at::Tensor(const nn::Tensors& inputs)>;

// One pass over the loader's data in evaluation mode, without gradients; the model is left in
// training mode. The samples of a classifier are counted in `scores`. `each(samples_done)` is
// called after each batch, also where images are looked at again for further views. `forward`: what
// computes the model's output, if not nn::forward(). Throws invalid_argument if the loader has no
// sample, or if there are views to be averaged of what is no classification of images.
Evaluation evaluate(nn::Model& model, data::Loader& loader, const spec::EvalOptions& options,
                    ClassScores& scores, const std::function<void(int64_t)>& each,
                    const Forward& forward = {});

// The logits as rows in memory, in fp32: those of a classifier, one row for each sample. Undefined
// if they have another form.
at::Tensor class_logits(const at::Tensor& logits, int64_t num_samples);

// The batch as tensors that view its memory; they are valid as long as the batch lives.
nn::Tensors inputs_of(const data::Batch& batch);
at::Tensor input_of(const data::Batch& batch);  // the first one
at::Tensor labels_of(const data::Batch& batch);

// The model's output for the batch.
at::Tensor forward(nn::Model& model, const data::Batch& batch);

}  // namespace ductile::train
