#pragma once

#include <cstdint>
#include <functional>

#include <nlohmann/json_fwd.hpp>

#include "ductile/data/loader.h"
#include "ductile/nn/model.h"
#include "ductile/spec/job.h"

namespace ductile::train {

// Means over an evaluation set.
struct Evaluation {
  double loss = 0;
  double accuracy = 0;  // of predictions: samples, or tokens
  int64_t num_samples = 0;

  double perplexity() const;  // exp(loss)
  nlohmann::json to_json() const;
  static Evaluation from_json(const nlohmann::json& value);
};

// One pass over the loader's data in evaluation mode, without gradients; the model is left in
// training mode. `each(samples_done)` is called after each batch. Throws invalid_argument if the
// loader has no sample, or if there are views to be averaged of what is no classification of
// images.
Evaluation evaluate(nn::Model& model, data::Loader& loader, const spec::EvalOptions& options,
                    const std::function<void(int64_t)>& each);

// Runs `batches` batches of the loader, which does not end, forward in training mode, so that the
// model's running statistics become those of its present weights.
void update_statistics(nn::Model& model, data::Loader& loader, int64_t batches);

// The batch as tensors that view its memory; they are valid as long as the batch lives.
at::Tensor input_of(const data::Batch& batch);
at::Tensor labels_of(const data::Batch& batch);

}  // namespace ductile::train
