#pragma once

#include "ductile/nn/model.h"
#include "ductile/train/flat_model.h"

namespace ductile::train {

// A second model of the job, of another precision, which finds losses faster with the weights of
// the trained one (train.selective.precision). It has memory for weights of its own.
class LookModel {
 public:
  // The model must outlive this object and have the parameters and buffers of the trained one.
  explicit LookModel(nn::Model& model);

  // Computes with these weights and running statistics from here on, rounded to its own precision.
  void take_over(FlatModel& trained);
  nn::Model& model() { return model_; }

 private:
  nn::Model& model_;
  std::vector<nn::NamedTensor> parameters_, buffers_;
};

}  // namespace ductile::train
