#include "ductile/train/statistics.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include <ATen/core/grad_mode.h>

#include "ductile/data/loader.h"
#include "ductile/nn/threads.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/ingredients.h"

namespace ductile::train {

void add_statistics(JobState& state, JobState::EvaluationWeights& evaluated, nn::Model& model,
                    const spec::JobOptions& job, const spec::AugmentOptions& augment,
                    const std::function<std::shared_ptr<const data::Dataset>()>& train_set) {
  const std::span<const float> trained = state.flat.buffer_values();
  if (!evaluated.of_the_rule || trained.empty() || job.train.statistics_batches == 0) return;
  evaluated.statistics = AlignedArray<float>(static_cast<int64_t>(trained.size()));
  evaluated.buffers = evaluated.statistics.span();
  std::ranges::copy(trained, evaluated.buffers.begin());
  data::LoaderTask task;
  task.seed = static_cast<uint64_t>(job.seed);
  task.batch_size = state.hyper.batch_size / spec::batch_parts(job) * job.train.bn_group;
  task.channels_last = lies_channels_last(job, model);
  data::Loader loader(train_set(), augment, job.loader, task);
  const WeightsSwap swap(state.flat, evaluated.weights, evaluated.buffers);
  nn::seed_step(static_cast<uint64_t>(job.seed));
  const at::NoGradGuard no_grad;
  model.train(true);
  for (int64_t i = 0; i < job.train.statistics_batches; ++i) forward(model, *loader.next());
}

}  // namespace ductile::train
