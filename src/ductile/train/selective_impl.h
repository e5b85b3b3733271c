#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/train/selection.h"

namespace ductile::train {

// Selective back-propagation (Jiang et al., arXiv 1910.00762): a forward pass without gradient
// shows the losses of a batch of the stream; each sample is kept with a probability that grows with
// the rank of its loss among the last ones seen; the kept ones wait in a queue, and a full batch of
// them is one step of training. What is left at the end of an epoch is trained, too.
//
// Protocol steps: to look at a batch of the stream (no gradient), to train on the queue, or to
// train on a whole batch of the stream. Which one is next follows from the state alone.
class SelectiveMethod : public StepMethod {
 public:
  explicit SelectiveMethod(const spec::JobOptions& job);

  void prepare(const spec::JobOptions& job, Ingredients& ingredients) override;
  void set_options(const spec::JobOptions& job) override { options_ = job.train.selective; }
  int64_t num_shared() const override { return batch_size_; }
  StepKind next(const JobState& state) const override;
  std::optional<Samples> samples(const JobState& state, const StepKind& kind) const override;
  Progress progress(const JobState& state, const Progress& by_stream) const override;
  at::Tensor contribute(RankContext& rank) override;
  Verdict judge(const JobState& state, const StepKind& kind,
                const std::map<std::string, double>& sums, int64_t num_ranks) const override;
  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override;

 protected:
  int64_t num_samples() const { return order_.num_samples(); }
  // Of these samples of the stream, those whose losses are to be shown by a forward pass.
  virtual std::vector<int64_t> to_look_at(const JobState&, std::vector<int64_t> indices) const {
    return indices;
  }
  // The losses of these samples of the stream, of which those in `looked_at` were just found.
  virtual std::vector<float> losses_of(JobState&, std::span<const int64_t> /*indices*/,
                                       std::span<const int64_t> /*looked_at*/,
                                       std::span<const float> found) const {
    return {found.begin(), found.end()};
  }
  // Called with the losses of a step of training; `whole`: on a batch that nobody had looked at.
  virtual void trained(JobState&, std::span<const int64_t> /*indices*/,
                       std::span<const float> /*losses*/, bool /*whole*/) const {}

 private:
  enum class Turn : uint8_t { look, queue, whole };
  Turn turn(const JobState& state) const;
  bool trains_whole(const JobState& state, const data::StepSamples& step) const;
  int64_t per_rank(const JobState& state) const { return state.hyper.batch_size / num_ranks_; }
  int64_t planned(const JobState& state) const;  // updates of a run that trains on all samples
  void select(JobState& state, int64_t epoch, std::span<const int64_t> indices,
              std::span<const float> losses) const;

  spec::SelectiveOptions options_;
  const std::string name_;
  const uint64_t seed_;
  const int64_t batch_size_, num_ranks_, epochs_, max_steps_;
  const bool by_updates_;
  StreamOrder order_;
  double look_cost_ = 1;
};

}  // namespace ductile::train
