#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/data/cursor.h"
#include "ductile/spec/job.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/state.h"
#include "ductile/train/step_method.h"

// What the methods that choose their samples have in common.
namespace ductile::train {

// Which samples the steps of the training stream hold, as the loader delivers them.
class StreamOrder {
 public:
  StreamOrder() = default;
  StreamOrder(uint64_t seed, bool shuffled, int64_t num_samples);
  static StreamOrder of(const spec::JobOptions& job, const Ingredients& ingredients);

  int64_t num_samples() const { return num_samples_; }
  data::StepSamples step(int64_t cursor, int64_t batch_size) const {
    return data::samples_of_step(cursor, batch_size, num_samples_);
  }
  // The samples at the positions [first, first + count) of an epoch.
  std::vector<int64_t> indices(int64_t epoch, int64_t first, int64_t count) const;

 private:
  uint64_t seed_ = 0;
  bool shuffled_ = true;
  int64_t num_samples_ = 0;
};

// Throws invalid_argument, naming the method and the model, unless the model's loss is one float
// for each sample. It runs the model on two blank samples in evaluation mode. The loss of a task is
// first seen in the first step.
void require_sample_losses(const spec::JobOptions& job, Ingredients& ingredients);

// The operations of a forward pass at half the resolution as a share of those of a whole one.
// Throws invalid_argument, naming the model, if it cannot run on such images.
double half_resolution_cost(const spec::JobOptions& job, Ingredients& ingredients);

// Gives every worker the losses of this rank's samples: a shared value for each sample of the step.
void share_losses(RankContext& rank, const at::Tensor& losses);

// Runs the rank's samples forward for the gradient of their mean loss, shares their losses, and
// sets the figures. A rank without a full part counts for as much as it has, and `weights` multiply
// the losses if there are any. The loss is undefined where the rank has no sample.
at::Tensor train_on(RankContext& rank, int64_t per_rank, std::span<const float> weights = {});

// A draw in [0, 1) that belongs to a sample in an epoch, whoever asks.
double draw_of(uint64_t seed, int64_t epoch, int64_t sample);

// A loss as it is ranked: one that is no number is above all others.
float as_rank(float loss);

// The last losses seen, at most `capacity` of them, the oldest of which is replaced first; kept in
// a part of a job's state.
class LossHistory {
 public:
  LossHistory(JobState& state, const std::string& part, int64_t capacity);

  void add(std::span<const float> losses);
  // In rising order.
  std::vector<float> sorted() const;

 private:
  std::span<float> ring_;
  nlohmann::json& seen_;  // how many were added
};

// The share of `sorted` that is strictly below the loss; 0 if there is none.
double share_below(std::span<const float> sorted, float loss);
// With which Selective-Backprop keeps a sample of this loss: that share ^ beta.
double keep_probability(std::span<const float> sorted, float loss, double beta);

}  // namespace ductile::train
