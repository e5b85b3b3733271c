#pragma once

#include <functional>
#include <memory>

#include "ductile/data/dataset.h"
#include "ductile/nn/model.h"
#include "ductile/spec/job.h"
#include "ductile/train/state.h"

namespace ductile::train {

// Batch norm's running statistics in the state are those of the weights that are trained. For
// weights of the optimiser's own they are computed here and added to `evaluated`: from the first
// training batches of the job, of the size that a batch norm group has, wherever it is done. The
// state stays as it was. `train_set` is asked for only where it is needed; `augment` is resolved.
void add_statistics(JobState& state, JobState::EvaluationWeights& evaluated, nn::Model& model,
                    const spec::JobOptions& job, const spec::AugmentOptions& augment,
                    const std::function<std::shared_ptr<const data::Dataset>()>& train_set);

}  // namespace ductile::train
