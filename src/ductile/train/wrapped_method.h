#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ductile/train/step_method.h"

namespace ductile::train {

// A step method that adds something to another one; what it does not override is the other's.
class WrappedMethod : public StepMethod {
 public:
  explicit WrappedMethod(std::unique_ptr<StepMethod> inner) : inner_(std::move(inner)) {}

  void prepare(const spec::JobOptions& job, Ingredients& given) override {
    inner_->prepare(job, given);
  }
  void set_options(const spec::JobOptions& job) override { inner_->set_options(job); }
  std::vector<std::string> figures() const override { return inner_->figures(); }
  int64_t num_shared() const override { return inner_->num_shared(); }
  StepKind next(const JobState& state) const override { return inner_->next(state); }
  std::optional<Samples> samples(const JobState& state, const StepKind& kind) const override {
    return inner_->samples(state, kind);
  }
  Progress progress(const JobState& state, const Progress& by_stream) const override {
    return inner_->progress(state, by_stream);
  }
  void weights(JobState& state, const StepKind& kind, int64_t rank,
               std::span<float> out) const override {
    inner_->weights(state, kind, rank, out);
  }
  bool runs_stages() const override { return inner_->runs_stages(); }
  at::Tensor contribute(RankContext& rank) override { return inner_->contribute(rank); }
  Verdict judge(const JobState& state, const StepKind& kind,
                const std::map<std::string, double>& sums, int64_t num_ranks) const override {
    return inner_->judge(state, kind, sums, num_ranks);
  }
  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override {
    inner_->commit(state, kind, outcome);
  }

 protected:
  StepMethod& inner() { return *inner_; }
  const StepMethod& inner() const { return *inner_; }

 private:
  std::unique_ptr<StepMethod> inner_;
};

}  // namespace ductile::train
