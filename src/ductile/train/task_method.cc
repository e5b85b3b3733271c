#include "ductile/train/task_method.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>

#include "ductile/base/error.h"
#include "ductile/data/cursor.h"
#include "ductile/train/own_update.h"
#include "ductile/train/wrapped_method.h"

namespace ductile::train {
namespace {

constexpr const char* kTaskPart = "task";  // of the state's extra parts
constexpr const char* kCarried = "carried";

// The names of some samples. All batches of a TaskContext are of this type.
struct NamedBatch final : data::Batch {
  std::vector<int64_t> own;         // of fetch()
  std::span<const int64_t> chosen;  // as in RankSamples
};

// A rank whose samples and losses are a task's; all else is the runner's.
class TaskContext final : public RankContext {
 public:
  // `method` is the one that sees this context. One that shares values goes by the loss of each
  // sample.
  TaskContext(RankContext& inner, Task& task, const StepMethod& method)
      : inner_(inner),
        task_(task),
        num_shared_(method.num_shared()),
        each_(num_shared_ > 0),
        epoch_done_(epoch_after(method)) {
    name_batch();
  }

  const spec::JobOptions& job() const override { return inner_.job(); }
  const JobState& state() const override { return inner_.state(); }
  const StepKind& kind() const override { return inner_.kind(); }
  int64_t rank() const override { return inner_.rank(); }
  uint64_t seed() const override { return inner_.seed(); }
  int64_t train_size() const override { return inner_.train_size(); }
  nn::Model& model() override { return inner_.model(); }
  const data::Batch& batch() override { return batch_; }
  int64_t first() const override { return inner_.first(); }
  const Samples* samples() const override { return inner_.samples(); }
  at::Tensor mean(const at::Tensor& losses) override {
    return losses.dim() == 0 ? losses : inner_.mean(losses);
  }
  void figure(std::string_view name, double value) override { inner_.figure(name, value); }
  std::span<float> shared() override {
    return inner_.shared().first(static_cast<size_t>(num_shared_));
  }

  std::shared_ptr<const data::Batch> fetch(std::span<const int64_t> indices,
                                           int64_t epoch) override {
    auto out = std::make_shared<NamedBatch>();
    out->own.assign(indices.begin(), indices.end());
    out->chosen = out->own;
    out->num_samples = std::ssize(indices);
    out->epoch = epoch;
    return out;
  }

  nn::LossOutput forward(const data::Batch& batch) override { return run(batch, false); }
  nn::LossOutput look(const data::Batch& batch, bool half) override {
    DUCTILE_CHECK(!half, "a task has no images");
    return run(batch, true);
  }

  // The sums of the metrics over all forward passes.
  const std::vector<Ratio>& ratios() const { return ratios_; }

 private:
  // The epoch in which the run is after this step, as the replica will say it, unless the batch
  // changes with this very step. An update is not one of `per_epoch` parts of an epoch in which the
  // batch has changed.
  double epoch_after(const StepMethod& method) const {
    const int64_t epochs = job().train.epochs;
    const int64_t per_epoch = train_size() / state().hyper.batch_size;
    const double position = samples() == nullptr
                                ? progress_after_batch(state(), train_size(), epochs).position
                                : progress_of(method, state(), train_size(), epochs).position + 1;
    return position / static_cast<double>(per_epoch);
  }

  // What the runner would load.
  void name_batch() {
    const int64_t batch = state().hyper.batch_size;
    const data::StepSamples step =
        data::samples_of_step(state().counters.cursor, batch, train_size());
    const Samples* const chosen = samples();
    if (chosen == nullptr) {
      batch_.epoch = step.epoch;
      batch_.first = step.first + first();
      batch_.num_samples = batch / job().train.virtual_ranks;
      return;
    }
    const auto all = static_cast<int64_t>(chosen->indices.size());
    batch_.epoch = chosen->epoch;
    batch_.first = std::min(first(), all);
    batch_.num_samples = std::min(chosen->per_rank, all - batch_.first);
    if (chosen->of_stream) {  // read ahead, as in plain training
      batch_.first += step.first;
    } else {
      batch_.chosen = chosen->indices;
    }
  }

  nn::LossOutput run(const data::Batch& any, bool look) {
    const auto& batch = static_cast<const NamedBatch&>(any);
    RankSamples samples;
    samples.epoch = batch.epoch;
    samples.first = batch.first;
    samples.count = batch.num_samples;
    samples.chosen = batch.chosen;
    samples.rank = rank();
    samples.step = state().counters.step;
    samples.epoch_done = epoch_done_;
    // Whoever runs several passes seeds libtorch before each of them.
    samples.seed = at::detail::getDefaultCPUGenerator().current_seed();
    samples.look = look;
    samples.each = each_;
    if (std::exchange(passed_, true)) carry_in(task_, state());  // as the first one began
    forwarded_ += samples.count;
    figure(kSamplesForward, static_cast<double>(forwarded_));
    TaskLoss out = task_.loss(samples);
    ratios_.resize(out.metrics.size());
    for (size_t i = 0; i < ratios_.size(); ++i) {
      ratios_[i].sum += out.metrics[i].sum;
      ratios_[i].of += out.metrics[i].of;
    }
    return {.losses = std::move(out.loss)};
  }

  RankContext& inner_;
  Task& task_;
  const int64_t num_shared_;
  const bool each_;
  const double epoch_done_;
  NamedBatch batch_;
  int64_t forwarded_ = 0;
  bool passed_ = false;
  std::vector<Ratio> ratios_;
};

class TaskMethod final : public WrappedMethod {
 public:
  TaskMethod(std::unique_ptr<StepMethod> inner, Task& task)
      : WrappedMethod(std::move(inner)), task_(task) {}

  std::vector<std::string> figures() const override {
    std::vector<std::string> names = inner().figures();
    for (const std::string& metric : task_.metrics()) {
      names.push_back(std::string(kRatioSum) + metric);
      names.push_back(std::string(kRatioOf) + metric);
    }
    return names;
  }

  // What is carried stands behind what the other method shares.
  int64_t num_shared() const override { return inner().num_shared() + task_.num_carried(); }

  // The state may be another one than that of the last step, so the rule has to look.
  StepKind next(const JobState& state) const override {
    if (OwnUpdate* const own = task_.own_update()) {
      const auto part = state.extras().find(kOwnUpdatePart);
      own->take(part == state.extras().end() ? nullptr : &part->second);
    }
    return inner().next(state);
  }

  at::Tensor contribute(RankContext& rank) override {
    carry_in(task_, rank.state());
    TaskContext context(rank, task_, inner());
    at::Tensor loss = inner().contribute(context);
    if (!rank.kind().update) return loss;
    if (rank.rank() == 0) {
      task_.carry_out(rank.shared().last(static_cast<size_t>(task_.num_carried())));
    }
    for (size_t i = 0; i < context.ratios().size(); ++i) {
      const std::string& name = task_.metrics()[i];
      const Ratio& ratio = context.ratios()[i];
      rank.figure(std::string(kRatioSum) + name, ratio.sum);
      rank.figure(std::string(kRatioOf) + name, ratio.of);
      if (name != "accuracy") continue;
      rank.figure(kCorrect, ratio.sum);
      rank.figure(kPredictions, ratio.of);
    }
    return loss;
  }

  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override {
    const auto carried = static_cast<size_t>(task_.num_carried());
    inner().commit(state, kind,
                   {outcome.sums, outcome.shared.first(outcome.shared.size() - carried),
                    outcome.gradient, outcome.samples, outcome.cursor});
    if (!kind.update) return;
    if (OwnUpdate* const own = task_.own_update()) {
      own->keep(state.extra(kOwnUpdatePart));
      state.last_hyper.lr = own->lr();
    }
    if (carried == 0) return;
    std::ranges::copy(
        outcome.shared.last(carried),
        state.extra_array(kTaskPart, kCarried, static_cast<int64_t>(carried)).begin());
  }

 private:
  Task& task_;
};

}  // namespace

std::unique_ptr<StepMethod> make_task_method(std::unique_ptr<StepMethod> inner, Task& task) {
  return std::make_unique<TaskMethod>(std::move(inner), task);
}

void carry_in(Task& task, const JobState& state) {
  if (task.num_carried() == 0) return;
  std::span<const float> pieces;
  if (const auto part = state.extras().find(kTaskPart); part != state.extras().end()) {
    const auto array = part->second.arrays.find(kCarried);
    if (array != part->second.arrays.end()) pieces = array->second.span();
  }
  task.carry_in(pieces);
}

void carry_out(Task& task, JobState& state) {
  if (const int64_t size = task.num_carried(); size > 0)
    task.carry_out(state.extra_array(kTaskPart, kCarried, size));
}

}  // namespace ductile::train
