#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ductile/base/aligned_array.h"
#include "ductile/data/loader.h"
#include "ductile/minima/surface.h"
#include "ductile/nn/model.h"
#include "ductile/train/flat_model.h"

namespace ductile::train {

// The mean loss of a model on fixed samples as a function of its trained parameters, one after the
// other without gaps. The model computes in evaluation mode: batch norm with the running
// statistics, no dropout. So the loss of a sample depends on the weights alone, not on what else is
// in its batch, and it is the loss of the model that is deployed. No label smoothing and no weight
// decay. If the model is thread-invariant, so are the bits of losses and gradients.
//
// The weights of the model are moved while a loss is computed; the destructor gives the model the
// first ones again. One thread.
class TrainingLoss final : public minima::Surface {
 public:
  using Batches = std::vector<std::shared_ptr<const data::Batch>>;

  // The model, which is left in evaluation mode, and its weights outlive this object. Throws
  // invalid_argument if there is no sample or no parameter.
  TrainingLoss(nn::Model& model, FlatModel& flat, Batches batches);
  TrainingLoss(const TrainingLoss&) = delete;
  TrainingLoss& operator=(const TrainingLoss&) = delete;
  ~TrainingLoss() override;

  std::span<const float> weights() const override { return weights_; }
  std::span<const minima::Filter> filters() const override { return filters_; }
  double loss(std::span<const float> at) override;
  double gradient(std::span<const float> at, std::span<float> out) override;

  int64_t num_samples() const { return num_samples_; }

 private:
  struct Range {
    int64_t flat, own, size;  // the places in the flat array and in ours
  };
  void move_to(std::span<const float> at);

  nn::Model& model_;
  FlatModel& flat_;
  Batches batches_;
  int64_t num_samples_ = 0;
  std::vector<Range> ranges_;
  std::vector<float> weights_;
  std::vector<minima::Filter> filters_;
  AlignedArray<float> batch_gradient_;
  std::vector<double> sum_;
};

}  // namespace ductile::train
