#include "ductile/train/probing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/nn/model.h"
#include "ductile/train/wrapped_method.h"

namespace ductile::train {
namespace {

constexpr const char* kProbePart = "probe";  // of the state's extra parts

class Probed final : public WrappedMethod {
 public:
  Probed(std::unique_ptr<StepMethod> inner, const optim::RateControl& control,
         const spec::JobOptions& job)
      : WrappedMethod(std::move(inner)),
        control_(control),
        batches_(control.probing()->batches),
        num_ranks_(job.train.virtual_ranks),
        seed_(static_cast<uint64_t>(job.seed)) {}

  std::optional<Samples> samples(const JobState& state, const StepKind& kind) const override {
    return place(state) ? std::nullopt : inner().samples(state, kind);
  }

  StepKind next(const JobState& state) const override {
    if (place(state)) return {.gradient = false, .update = false, .displaced = true};
    return inner().next(state);
  }

  void weights(JobState& state, const StepKind& kind, int64_t rank,
               std::span<float> out) const override {
    const std::optional<double> at = place(state);
    if (!at) return inner().weights(state, kind, rank, out);
    const std::span<const float> after = state.flat.weights();
    const std::span<const float> before = kept(state);
    const auto way = static_cast<float>(*at);
    for (size_t i = 0; i < after.size(); ++i) out[i] = before[i] + way * (after[i] - before[i]);
  }

  at::Tensor contribute(RankContext& rank) override {
    if (!place(rank.state())) return inner().contribute(rank);
    const data::Batch& batch = rank.batch();
    const int64_t epoch = batch.epoch, count = batch.num_samples;
    const uint64_t round = mix(mix(seed_, static_cast<uint64_t>(rank.state().counters.updates)),
                               static_cast<uint64_t>(rank.rank()));
    Rng draw(round);
    double sum = 0;
    std::vector<int64_t> samples(static_cast<size_t>(count));
    for (int64_t i = 0; i < batches_; ++i) {
      for (int64_t& sample : samples) sample = draw.below(static_cast<uint32_t>(rank.train_size()));
      const auto fetched = rank.fetch(samples, epoch);
      nn::seed_step(mix(round, static_cast<uint64_t>(i)));
      sum += rank.mean(rank.forward(*fetched).losses).item<double>();
    }
    rank.figure(kLoss, sum / static_cast<double>(batches_));
    return {};
  }

  Verdict judge(const JobState& state, const StepKind& kind,
                const std::map<std::string, double>& sums, int64_t num_ranks) const override {
    if (!place(state)) return inner().judge(state, kind, sums, num_ranks);
    return {.update = false, .loss = sums.at(std::string(kLoss)) / static_cast<double>(num_ranks)};
  }

  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override {
    nlohmann::json& part = state.extra(kProbePart).values;
    if (!place(state)) {
      inner().commit(state, kind, outcome);
      part.erase("loss");
      if (kind.update && control_.keeps_weights(memory(state)))
        std::ranges::copy(state.flat.weights(), kept(state).begin());
      return;
    }
    const double loss = outcome.sums.at(std::string(kLoss)) / static_cast<double>(num_ranks_);
    part["loss"] = std::isfinite(loss) ? nlohmann::json(loss) : nlohmann::json();
  }

 private:
  static const nlohmann::json& memory(const JobState& state) {
    static const nlohmann::json empty = nlohmann::json::object();
    const auto part = state.extras().find(std::string(kControlPart));
    return part == state.extras().end() ? empty : part->second.values;
  }
  std::optional<double> place(const JobState& state) const { return control_.probe(memory(state)); }
  static std::span<float> kept(JobState& state) {
    return state.extra_array(kProbePart, "before",
                             static_cast<int64_t>(state.flat.weights().size()));
  }

  const optim::RateControl& control_;
  const int64_t batches_, num_ranks_;
  const uint64_t seed_;
};

}  // namespace

std::unique_ptr<StepMethod> with_probes(std::unique_ptr<StepMethod> inner,
                                        const optim::RateControl& control,
                                        const spec::JobOptions& job) {
  if (!control.probing()) return inner;
  return std::make_unique<Probed>(std::move(inner), control, job);
}

std::optional<double> probe_loss(const JobState& state) {
  const auto part = state.extras().find(kProbePart);
  if (part == state.extras().end()) return std::nullopt;
  const auto loss = part->second.values.find("loss");
  if (loss == part->second.values.end()) return std::nullopt;
  return loss->is_null() ? std::numeric_limits<double>::infinity() : loss->get<double>();
}

}  // namespace ductile::train
