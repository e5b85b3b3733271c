#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/train/selection.h"

namespace ductile::train {

// Training on a part of each epoch's samples, chosen as the epoch begins by the loss with which
// each sample was last trained: no forward pass is for the choice alone. A sample's loss is
// multiplied by its weight in the epoch, and 0 means that it is skipped. A batch is the next ones
// that are not skipped, in the order of the stream; what is less than a batch at the end of an
// epoch is dropped.
//
// The schedule goes by the share of the epoch's updates that are done, so a shorter epoch moves
// through its part of the schedule faster.
class ScoredMethod : public StepMethod {
 public:
  // Such a method's part of the state is named by train.method.
  explicit ScoredMethod(const spec::JobOptions& job);

  void prepare(const spec::JobOptions& job, Ingredients& ingredients) override;
  int64_t num_shared() const override { return batch_size_; }
  std::optional<Samples> samples(const JobState& state, const StepKind& kind) const override;
  Progress progress(const JobState& state, const Progress& by_stream) const override;
  at::Tensor contribute(RankContext& rank) override;
  // The loss is the mean with the samples' weights, over the sum of these: comparable with that of
  // plain training, whereas the gradient is of the mean over the samples that are kept.
  Verdict judge(const JobState& state, const StepKind& kind,
                const std::map<std::string, double>& sums, int64_t num_ranks) const override;
  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override;

 protected:
  // Sets the weights of the epoch's samples, which are 1, by their scores.
  virtual void weigh(int64_t epoch, std::span<const float> scores,
                     std::span<float> weights) const = 0;
  // The share of the run after which no sample is skipped.
  virtual double end() const = 0;

  const uint64_t seed_;
  const int64_t epochs_;

 private:
  const ExtraPart* part_of(const JobState& state) const;
  int64_t updates_of(const JobState& state) const;  // in the present epoch
  int64_t updates_done(const JobState& state) const;
  void begin_epoch(JobState& state, int64_t epoch) const;

  const std::string name_;
  const int64_t batch_size_, num_ranks_, max_steps_;
  StreamOrder order_;
};

// The weights of InfoBatch in an epoch of a run of so many epochs.
void weigh_infobatch(const spec::InfoBatchOptions& options, uint64_t seed, int64_t epochs,
                     int64_t epoch, std::span<const float> scores, std::span<float> weights);
// Those of the method graded.
void weigh_graded(const spec::GradedOptions& options, uint64_t seed, int64_t epochs, int64_t epoch,
                  std::span<const float> scores, std::span<float> weights);

}  // namespace ductile::train
