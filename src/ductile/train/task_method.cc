#include "ductile/train/task_method.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ductile/data/cursor.h"
#include "ductile/train/own_update.h"

namespace ductile::train {
namespace {

constexpr const char* kTaskPart = "task";  // of the state's extra parts
constexpr const char* kCarried = "carried";

class TaskMethod final : public StepMethod {
 public:
  explicit TaskMethod(Task& task) : task_(task) {}

  std::vector<std::string> figures() const override {
    std::vector<std::string> names;
    for (const std::string& metric : task_.metrics()) {
      names.push_back(std::string(kRatioSum) + metric);
      names.push_back(std::string(kRatioOf) + metric);
    }
    return names;
  }

  int64_t num_shared() const override { return task_.num_carried(); }

  // The state may be another one than that of the last step, so the rule has to look.
  StepKind next(const JobState& state) const override {
    if (OwnUpdate* const own = task_.own_update()) {
      const auto part = state.extras().find(kOwnUpdatePart);
      own->take(part == state.extras().end() ? nullptr : &part->second);
    }
    return {};
  }

  at::Tensor contribute(RankContext& rank) override {
    const int64_t batch = rank.state().hyper.batch_size;
    const data::StepSamples step =
        data::samples_of_step(rank.state().counters.cursor, batch, rank.train_size());
    RankSamples samples;
    samples.epoch = step.epoch;
    samples.first = step.first + rank.first();
    samples.count = batch / rank.job().train.virtual_ranks;
    samples.rank = rank.rank();
    samples.step = rank.state().counters.step;
    samples.seed = rank.seed();
    carry_in(task_, rank.state());
    TaskLoss out = task_.loss(samples);
    if (rank.rank() == 0) task_.carry_out(rank.shared());
    rank.figure(kLoss, out.loss.item<float>());
    for (size_t i = 0; i < out.metrics.size(); ++i) {
      const std::string& name = task_.metrics()[i];
      const Ratio& ratio = out.metrics[i];
      rank.figure(std::string(kRatioSum) + name, ratio.sum);
      rank.figure(std::string(kRatioOf) + name, ratio.of);
      if (name != "accuracy") continue;
      rank.figure(kCorrect, ratio.sum);
      rank.figure(kPredictions, ratio.of);
    }
    rank.figure(kSamplesForward, static_cast<double>(samples.count));
    rank.figure(kSamplesBackward, static_cast<double>(samples.count));
    return std::move(out.loss);
  }

  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override {
    if (!kind.update) return;
    if (OwnUpdate* const own = task_.own_update()) {
      own->keep(state.extra(kOwnUpdatePart));
      state.last_hyper.lr = own->lr();
    }
    if (num_shared() == 0) return;
    std::ranges::copy(outcome.shared, state.extra_array(kTaskPart, kCarried, num_shared()).begin());
  }

 private:
  Task& task_;
};

}  // namespace

std::unique_ptr<StepMethod> make_task_method(Task& task) {
  return std::make_unique<TaskMethod>(task);
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
