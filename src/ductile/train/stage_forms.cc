#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/nn/generator.h"
#include "ductile/parallel/exact.h"
#include "ductile/train/data_form.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/stage_runner.h"

// What stages learn of a job's operators before they run them: how tensors lie, how much memory
// those take that travel, and whether the operators allow what the job asks for.
namespace ductile::train {

// The worker of each virtual rank.
std::vector<int> StageRunner::hosts_of_ranks(std::span<const int64_t> cut) {
  std::vector<int> out;
  for (size_t r = 0; r + 1 < cut.size(); ++r) {
    out.insert(out.end(), static_cast<size_t>(cut[r + 1] - cut[r]), static_cast<int>(r));
  }
  return out;
}

// The workers of a pipeline's parts, of those of all virtual ranks.
std::vector<int> StageRunner::hosts_of_parts(int64_t pipeline,
                                             const std::vector<int>& hosts) const {
  std::vector<int> out;
  for (const int rank : part_ranks_) {
    out.push_back(hosts[static_cast<size_t>(pipeline * num_ranks_ + rank)]);
  }
  return out;
}

size_t StageRunner::message_bytes(std::span<const int64_t> cut) {
  if (cut.size() < 3) return 0;  // a worker that is alone
  // Refuses by name what it would stumble over.
  if (pipeline_.exact || pipeline_.is_replicated()) prepare();
  if (forms_.empty()) find_forms(blank_inputs());
  const std::vector<int> hosts = hosts_of_ranks(cut);
  parallel::PipelineHost::Placement placement;
  placement.forms = forms_;
  placement.shares = shares_;
  std::vector<parallel::PipelineHost::Placement> placements;
  for (int64_t r = 0; r < num_replicas_; ++r) {  // which run one after the other
    placement.hosts = hosts_of_parts(r, hosts);
    placements.push_back(placement);
  }
  size_t most = 0;
  for (const auto& [worker, bytes] :
       parallel::PipelineHost::receive_bytes(operators_, pipeline_, placements)) {
    most = std::max(most, bytes);
  }
  return most;
}

// Of a micro-batch, with labels.
nn::Tensors StageRunner::blank_inputs() const {
  const int64_t samples = job_.train.batch_size / spec::batch_parts(job_);
  const DataForm form = DataForm::of(job_, ingredients_.train_set->info(), ingredients_.augment);
  nn::Tensors inputs = form.blank_inputs(samples);
  if (form.images() && lies_channels_last(job_, *ingredients_.model)) {
    inputs[0] = inputs[0].contiguous(at::MemoryFormat::ChannelsLast);
  }
  inputs.push_back(form.tokens ? inputs[0] : at::zeros({samples}, at::kLong));
  return inputs;
}

// The same on every worker, whatever stages it hosts.
void StageRunner::find_forms(const nn::Tensors& inputs) {
  if (!forms_.empty()) return;
  shares_ = parallel::share_forms(operators_, pipeline_, inputs);
  forms_ = parallel::tensor_forms(operators_, inputs);
}

// Once. Refuses what the operators do not allow, which takes the weights of all of them where the
// pipelines are exact or replicated.
void StageRunner::prepare() {
  if (prepared_) return;
  const nn::Tensors inputs = blank_inputs();
  if (pipeline_.exact) {
    parallel::check_exact(pipeline_, operators_, inputs);
    draws_ = parallel::draws_of(operators_, inputs);
  }
  parallel::check_samples_first(operators_, pipeline_, inputs);
  find_forms(inputs);
  if (pipeline_.exact) check_bits(inputs);
  prepared_ = true;
}

// Gradients of one micro-batch by all stages and by autograd over the whole model. How a tensor
// lies in memory where the model is cut may make a kernel go another way, which no look at
// operators shows.
void StageRunner::check_bits(const nn::Tensors& like) const {
  constexpr uint64_t kSeed = 1;
  const std::span<float> buffers = flat_.buffer_values();
  const std::vector<float> before(buffers.begin(), buffers.end());
  std::unique_lock draws(nn::generator_mutex());
  nn::seed_step(kSeed);
  nn::Tensors inputs;
  for (const at::Tensor& t : like) {
    inputs.push_back(t.is_floating_point() ? at::randn_like(t) : t);
  }
  draws.unlock();
  parallel::Pipeline pipeline = pipeline_;
  pipeline.num_micro_batches = 1;
  for (parallel::Pipeline::Stage& stage : pipeline.stages) {
    stage.order = {spec::Task::forward, spec::Task::backward};
    if (pipeline.split) stage.order.push_back(spec::Task::backward_weight);
  }
  parallel::PipelineHost::Placement all;
  all.hosts.assign(pipeline.stages.size(), 0);
  all.forms = forms_;
  parallel::PipelineHost host(operators_, pipeline, all);
  parallel::PipelineHost::Step step;
  step.inputs = {inputs};
  step.seed = kSeed;
  step.draws = &draws_;
  host.run(step);

  draws.lock();
  nn::seed_step(mix(kSeed, 0));
  const at::AutoGradMode differentiates(true);
  const at::Tensor logits =
      nn::forward(*ingredients_.model, std::span(inputs).first(inputs.size() - 1));
  const nn::LossOutput loss =
      ingredients_.model->loss(logits, inputs.back(), job_.train.label_smoothing);
  draws.unlock();
  const std::vector<at::Tensor> whole = flat_.gradients(loss.losses.mean());
  std::ranges::copy(before, buffers.begin());
  for (size_t i = 0; i < whole.size(); ++i) {
    const std::string& name = flat_.parameters()[i].name;
    const auto found = host.gradients().find(name);
    if (!whole[i].defined() || found == host.gradients().end()) continue;
    // A run that has diverged is not refused for it: NaN is equal to NaN here.
    const at::Tensor own = whole[i].to(found->second.scalar_type()).nan_to_num();
    if (at::equal(own, found->second.nan_to_num())) continue;
    fail(
        ErrorCode::invalid_argument,
        "train.pipeline_exact: the gradient of {} has other bits where the model is cut into these "
        "stages, since a tensor between them lies otherwise in memory; cut it elsewhere "
        "(train.pipelined.stages), or set train.pipeline_exact = false",
        name);
  }
}

}  // namespace ductile::train
