#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/train/selective_impl.h"

namespace ductile::train {
namespace {

constexpr const char* kStalePart = "stale_losses";  // of the state's extra parts

// Selective back-propagation with losses of earlier epochs (Stale-SB): a sample's loss is found by
// a forward pass once in `stale_epochs` epochs, and is used again in the others. A step of training
// replaces the losses of its samples; if nobody had looked at them, that counts as a look.
class StaleSelective final : public SelectiveMethod {
 public:
  explicit StaleSelective(const spec::JobOptions& job)
      : SelectiveMethod(job), uses_(static_cast<float>(job.train.selective.stale_epochs)) {}

 protected:
  std::vector<int64_t> to_look_at(const JobState& state,
                                  std::vector<int64_t> indices) const override {
    const auto part = state.extras().find(kStalePart);
    if (part == state.extras().end()) return indices;
    const auto left = part->second.arrays.at("uses_left").span();
    std::erase_if(indices, [&](int64_t i) { return left[static_cast<size_t>(i)] > 0; });
    return indices;
  }

  std::vector<float> losses_of(JobState& state, std::span<const int64_t> indices,
                               std::span<const int64_t> looked_at,
                               std::span<const float> found) const override {
    const Table table = this->table(state);
    for (size_t i = 0; i < looked_at.size(); ++i) table.set(looked_at[i], found[i], uses_);
    std::vector<float> out;
    for (const int64_t index : indices) {
      --table.uses_left[static_cast<size_t>(index)];
      out.push_back(table.loss[static_cast<size_t>(index)]);
    }
    return out;
  }

  void trained(JobState& state, std::span<const int64_t> indices, std::span<const float> losses,
               bool whole) const override {
    const Table table = this->table(state);
    for (size_t i = 0; i < indices.size(); ++i) {
      const float left = table.uses_left[static_cast<size_t>(indices[i])];
      table.set(indices[i], losses[i], whole ? uses_ - 1 : left);
    }
  }

 private:
  struct Table {
    std::span<float> loss, uses_left;  // by sample; what was never seen may not be used

    void set(int64_t sample, float value, float uses) const {
      loss[static_cast<size_t>(sample)] = value;
      uses_left[static_cast<size_t>(sample)] = uses;
    }
  };

  Table table(JobState& state) const {
    return {state.extra_array(kStalePart, "loss", num_samples()),
            state.extra_array(kStalePart, "uses_left", num_samples())};
  }

  const float uses_;
};

}  // namespace

std::unique_ptr<StepMethod> make_stale_selective_method(const spec::JobOptions& job) {
  return std::make_unique<StaleSelective>(job);
}

}  // namespace ductile::train
