#include "ductile/train/testing/sample_methods.h"

#include <algorithm>
#include <cmath>
#include <variant>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/spec/live_options.h"
#include "ductile/train/evaluate.h"

namespace ductile::train::testing {
namespace {

class Selecting final : public StepMethod {
 public:
  std::vector<std::string> figures() const override { return {"selected", "loss_seen"}; }

  at::Tensor contribute(RankContext& rank) override {
    const data::Batch& batch = rank.batch();
    std::vector<int64_t> chosen;
    double seen = 0;
    const auto part = rank.state().extras().find("selecting");
    const double threshold =
        part == rank.state().extras().end() ? 0 : part->second.values.value("threshold", 0.0);
    {
      const at::NoGradGuard no_grad;
      const at::Tensor losses = rank.forward(batch).losses;
      for (int64_t i = 0; i < batch.num_samples; ++i) {
        const double loss = losses[i].item<double>();
        seen += loss;
        if (loss >= threshold)
          chosen.push_back(static_cast<int64_t>(batch.samples[static_cast<size_t>(i)]));
      }
    }
    rank.figure("loss_seen", seen);
    rank.figure("selected", static_cast<double>(chosen.size()));
    rank.figure(kSamplesBackward, static_cast<double>(chosen.size()));
    if (chosen.empty()) return {};
    const auto selected = rank.fetch(chosen, batch.epoch);
    const nn::LossOutput loss = rank.forward(*selected);
    rank.figure(kCorrect, static_cast<double>(loss.correct));
    rank.figure(kPredictions, static_cast<double>(loss.predictions));
    const at::Tensor sum = loss.losses.sum();
    rank.figure(kLoss, sum.item<double>());
    return sum;
  }

  Verdict judge(const JobState&, const StepKind& kind, const std::map<std::string, double>& sums,
                int64_t) const override {
    const double selected = sums.at("selected");
    if (selected == 0) return {.update = false};
    return {kind.update, selected, sums.at(std::string(kLoss)) / selected};
  }

  void commit(JobState& state, const StepKind&, const Outcome& outcome) const override {
    nlohmann::json& memory = state.extra("selecting").values;
    const double mean =
        outcome.sums.at("loss_seen") / static_cast<double>(state.last_hyper.batch_size);
    memory["threshold"] = 0.5 * memory.value("threshold", 0.0) + 0.4 * mean;
  }
};

class Probing final : public StepMethod {
 public:
  StepKind next(const JobState& state) const override {
    const int64_t place = place_of(state);
    if (place < 0) return {};
    return {.gradient = false, .update = false, .displaced = true};
  }

  void weights(JobState& state, const StepKind&, int64_t, std::span<float> out) const override {
    move(state, out, kPlaces[place_of(state)]);
  }

  at::Tensor contribute(RankContext& rank) override {
    const nn::LossOutput loss = rank.forward(rank.batch());
    const at::Tensor mean = rank.mean(loss.losses);
    rank.figure(kLoss, mean.item<double>());
    if (rank.kind().update) {
      rank.figure(kCorrect, static_cast<double>(loss.correct));
      rank.figure(kPredictions, static_cast<double>(loss.predictions));
      rank.figure(kSamplesBackward, static_cast<double>(rank.batch().num_samples));
    }
    return mean;
  }

  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override {
    const auto size = static_cast<int64_t>(state.flat.weights().size());
    const std::span<float> before = state.extra_array("probing", "before", size);
    nlohmann::json& memory = state.extra("probing").values;
    if (kind.update) {
      memory["places"] = nlohmann::json::array();
      memory["asked"] = state.counters.updates % 3 == 0;
      if (state.counters.updates % 3 == 2) std::ranges::copy(state.flat.weights(), before.begin());
      return;
    }
    memory["places"].push_back(outcome.sums.at(std::string(kLoss)));
    if (memory["places"].size() < std::size(kPlaces)) return;
    const auto losses = memory["places"].get<std::vector<double>>();
    const auto best = std::ranges::min_element(losses) - losses.begin();
    move(state, state.flat.weights(), 0.1F * kPlaces[best]);
    state.flat.refresh_half_weights();
    memory["asked"] = false;
  }

 private:
  static constexpr float kPlaces[] = {-0.5F, 0.25F, 1.0F};

  // Of the next probe; -1: no probe is due.
  static int64_t place_of(const JobState& state) {
    const auto part = state.extras().find("probing");
    if (part == state.extras().end() || !part->second.values.value("asked", false)) return -1;
    return static_cast<int64_t>(part->second.values.at("places").size());
  }

  // Along the last update's direction.
  static void move(JobState& state, std::span<float> out, float way) {
    const std::span<const float> now = state.flat.weights();
    const std::span<const float> before =
        state.extra_array("probing", "before", static_cast<int64_t>(now.size()));
    for (size_t i = 0; i < now.size(); ++i) out[i] = now[i] + way * (now[i] - before[i]);
  }
};

class Restless final : public optim::RateControl {
 public:
  explicit Restless(const spec::JobOptions& job)
      : hyper_(optim::Hyper::of(job)), ranks_(job.train.virtual_ranks) {}

  optim::Hyper next(const optim::Observed& observed, nlohmann::json& memory) const override {
    const double smooth = 0.7 * memory.value("loss", 2.0) + 0.3 * observed.loss.value_or(2.0);
    memory["loss"] = smooth;
    optim::Hyper hyper = hyper_;
    hyper.lr *= 1 / (1 + std::abs(smooth)) + 0.01 * observed.eval_loss.value_or(0);
    hyper.momentum *= observed.updates % 2 == 0 ? 1.0 : 0.9;
    hyper.weight_decay *= 1 + observed.position / 10;
    hyper.batch_size = ranks_ * (1 + observed.updates % 3);
    // Grows and shrinks, and is sometimes 0: for a job of 3 it is 0, 0, 3, 3, 2, 2, 1, 1.
    hyper.staleness = observed.updates / 2 * 3 % (hyper_.staleness + 1);
    return hyper;
  }

 private:
  optim::Hyper hyper_;
  int64_t ranks_;
};

class RestlessOptions final : public optim::RateControl {
 public:
  explicit RestlessOptions(const spec::JobOptions& job) : hyper_(optim::Hyper::of(job)) {
    spec::JobOptions copy = job;
    const OptionSet options(copy);
    for (const spec::LiveOption& option : spec::live_options()) {
      if (!option.is_read(job)) continue;
      const OptionField& field = *options.find(option.key);
      live_.push_back({&option, spec::live_value(job, option.key), field.min, field.max,
                       std::holds_alternative<int64_t*>(field.ref)});
    }
  }

  optim::Hyper next(const optim::Observed& observed, nlohmann::json&) const override {
    optim::Hyper hyper = hyper_;
    if (observed.updates % 4 == 3) return hyper;
    for (size_t i = 0; i < live_.size(); ++i) {
      const auto turn = static_cast<double>((observed.updates + static_cast<int64_t>(i)) % 3);
      hyper.set(live_[i].option->key, live_[i].value_at(turn));
    }
    return hyper;
  }

 private:
  struct Live {
    const spec::LiveOption* option;
    double of_job, least, largest;
    bool whole;

    double value_at(double turn) const {
      if (whole) return std::min(largest, of_job + turn);
      const double more = 1 + 0.25 * turn;
      if (option->scale == spec::LiveScale::log_to_one)
        return std::clamp(1 - (1 - of_job) * more, least, 0.9999);
      return std::clamp(of_job > 0 ? of_job * more : 0.1 * turn, least, largest);
    }
  };

  const optim::Hyper hyper_;
  std::vector<Live> live_;
};

}  // namespace

std::unique_ptr<StepMethod> make_selecting_method() { return std::make_unique<Selecting>(); }
std::unique_ptr<StepMethod> make_probing_method() { return std::make_unique<Probing>(); }
std::unique_ptr<optim::RateControl> make_restless_control(const spec::JobOptions& job) {
  return std::make_unique<Restless>(job);
}
std::unique_ptr<optim::RateControl> make_restless_options_control(const spec::JobOptions& job) {
  return std::make_unique<RestlessOptions>(job);
}

}  // namespace ductile::train::testing
