#include "ductile/train/staleness.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/spec/methods.h"
#include "ductile/train/wrapped_method.h"

namespace ductile::train {
namespace {

constexpr const char* kStalenessPart = "staleness";  // of the state's extra parts
constexpr uint64_t kDraw = 0x57a1e;  // keeps the draws apart from others by the seed

// The weights after update u lie in the array of number u mod (the largest bound + 1). Which of
// these arrays there are says which weights are kept.
class Stale final : public WrappedMethod {
 public:
  Stale(std::unique_ptr<StepMethod> inner, spec::JobOptions job)
      : WrappedMethod(std::move(inner)),
        job_(std::move(job)),
        num_places_(spec::most_staleness(job_) + 1) {}

  StepKind next(const JobState& state) const override {
    StepKind kind = inner().next(state);
    if (kind.update && state.hyper.staleness > 0) kind.displaced = true;
    return kind;
  }

  void weights(JobState& state, const StepKind& kind, int64_t rank,
               std::span<float> out) const override {
    if (!kind.update || state.hyper.staleness == 0) return inner().weights(state, kind, rank, out);
    const int64_t now = state.counters.updates;
    const int64_t most = std::clamp<int64_t>(num_kept(state) - 1, 0, state.hyper.staleness);
    const int64_t age = staleness_of(job_, now, rank, most);
    const std::span<const float> then = age == 0 ? state.flat.weights() : kept(state, now - age);
    std::ranges::copy(then, out.begin());
  }

  // The bound is still that of the step which is over.
  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override {
    inner().commit(state, kind, outcome);
    if (!kind.update) return;
    const int64_t bound = state.hyper.staleness, now = state.counters.updates;
    if (bound > 0) std::ranges::copy(state.flat.weights(), kept(state, now).begin());
    if (!state.extras().contains(kStalenessPart)) return;
    std::erase_if(state.extra(kStalenessPart).arrays, [&](const auto& array) {
      const int64_t age = (now - std::stoll(array.first) + num_places_) % num_places_;
      return bound == 0 || age > bound;
    });
  }

 private:
  static int64_t num_kept(const JobState& state) {
    const auto part = state.extras().find(kStalenessPart);
    return part == state.extras().end() ? 0 : static_cast<int64_t>(part->second.arrays.size());
  }
  std::span<float> kept(JobState& state, int64_t updates) const {
    return state.extra_array(kStalenessPart, std::to_string(updates % num_places_),
                             static_cast<int64_t>(state.flat.weights().size()));
  }

  const spec::JobOptions job_;
  const int64_t num_places_;
};

}  // namespace

int64_t staleness_of(const spec::JobOptions& job, int64_t updates, int64_t rank, int64_t most) {
  Rng draw(mix(mix(mix(static_cast<uint64_t>(job.seed), kDraw), static_cast<uint64_t>(updates)),
               static_cast<uint64_t>(rank / job.train.bn_group)));
  return draw.below(static_cast<uint32_t>(most + 1));
}

void add_staleness(nlohmann::json& hyper, const spec::JobOptions& job) {
  if (hyper.is_object()) hyper.emplace("staleness", job.train.staleness);
}

void add_staleness_to_state(nlohmann::json& values, const spec::JobOptions& job) {
  for (const char* name : {"hyper", "last_hyper"})
    if (values.contains(name)) add_staleness(values[name], job);
  if (!values.contains("branches")) return;
  for (nlohmann::json& branch : values["branches"])
    add_staleness_to_state(branch.at("values"), job);
}

std::unique_ptr<StepMethod> with_staleness(std::unique_ptr<StepMethod> inner,
                                           const spec::JobOptions& job) {
  if (spec::most_staleness(job) == 0) return inner;
  return std::make_unique<Stale>(std::move(inner), job);
}

}  // namespace ductile::train
