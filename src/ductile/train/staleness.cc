#include "ductile/train/staleness.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "ductile/base/rng.h"
#include "ductile/train/wrapped_method.h"

namespace ductile::train {
namespace {

constexpr const char* kStalenessPart = "staleness";  // of the state's extra parts
constexpr uint64_t kDraw = 0x57a1e;  // keeps the draws apart from others by the seed

class Stale final : public WrappedMethod {
 public:
  Stale(std::unique_ptr<StepMethod> inner, spec::JobOptions job)
      : WrappedMethod(std::move(inner)), job_(std::move(job)) {}

  StepKind next(const JobState& state) const override {
    StepKind kind = inner().next(state);
    if (kind.update) kind.displaced = true;
    return kind;
  }

  void weights(JobState& state, const StepKind& kind, int64_t rank,
               std::span<float> out) const override {
    if (!kind.update) return inner().weights(state, kind, rank, out);
    const int64_t now = state.counters.updates, age = staleness_of(job_, now, rank);
    const std::span<const float> then = age == 0 ? state.flat.weights() : kept(state, now - age);
    std::ranges::copy(then, out.begin());
  }

  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override {
    inner().commit(state, kind, outcome);
    if (kind.update)
      std::ranges::copy(state.flat.weights(), kept(state, state.counters.updates).begin());
  }

 private:
  // The weights after so many updates, of which the last s + 1 are kept.
  std::span<float> kept(JobState& state, int64_t updates) const {
    return state.extra_array(kStalenessPart, std::to_string(updates % (job_.train.staleness + 1)),
                             static_cast<int64_t>(state.flat.weights().size()));
  }

  const spec::JobOptions job_;
};

}  // namespace

// The first weights are never kept, since nothing was committed then.
int64_t staleness_of(const spec::JobOptions& job, int64_t updates, int64_t rank) {
  const int64_t most = std::clamp<int64_t>(updates - 1, 0, job.train.staleness);
  Rng draw(mix(mix(mix(static_cast<uint64_t>(job.seed), kDraw), static_cast<uint64_t>(updates)),
               static_cast<uint64_t>(rank / job.train.bn_group)));
  return draw.below(static_cast<uint32_t>(most + 1));
}

std::unique_ptr<StepMethod> with_staleness(std::unique_ptr<StepMethod> inner,
                                           const spec::JobOptions& job) {
  if (job.train.staleness == 0) return inner;
  return std::make_unique<Stale>(std::move(inner), job);
}

}  // namespace ductile::train
