#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ductile/base/json_value.h"
#include "ductile/optim/hyper.h"
#include "ductile/spec/job.h"
#include "ductile/train/state.h"
#include "ductile/tune/trial_policy.h"

namespace ductile::train {

// The extra part of the state that is the tuner's memory.
inline constexpr std::string_view kTunerPart = "tuner";

// Finds hyperparameters while training (MLtuner, Cui et al., arXiv 1803.07445): trials are short
// stretches of training on branches of the state, each with its own setting; the best branch is
// kept with the work that it did, and training goes on from there. When the evaluations reach a
// plateau, another search begins from the present state; when the run diverges after a search, from
// the last state that was good, among smaller learning rates.
//
// What it may choose are the ranges in [tune]: those of numbers that have an option there, and of
// any live option in tune.options (spec/live_options.h).
//
// Where MLtuner counts seconds, this counts samples: what is tried and kept is a function of the
// state alone, so that it has the same bits on any number of workers and through any loss. What it
// remembers lies in the state. One thread.
class OnlineTuner {
 public:
  // Throws invalid_argument for options that do not fit. `train_size`: samples of the training set.
  // `epoch`: how far the present state is in the epochs of the run, which the step method decides.
  OnlineTuner(const spec::JobOptions& job, int64_t train_size, std::function<double()> epoch);

  // What is to be said as a run begins: its searches are too short to compare trials; empty:
  // nothing.
  std::string warning() const;

  // Begins the first search, in the first state of a job.
  void begin(JobState& state) const;
  bool is_searching(const JobState& state) const;
  // Whether a loss that is not finite can be told: trials are under way, or there is a state to go
  // back to.
  bool takes_divergence(const JobState& state) const;
  // How much of the present search's budget is given out; nothing between searches.
  std::optional<double> search_share(const JobState& state) const;
  // To be called after each update, with the loss that it saw (NaN: it was not made), and whether
  // the planned updates of the job are done. True if the state is now another branch.
  struct Update {
    double loss = 0;
    bool is_last = false;
  };
  bool updated(JobState& state, const Update& update) const;
  // To be called after every other committed step: what was told is not told again.
  void passed(JobState& state) const;
  // The hyperparameters of the next step, from those that the rate control chose. A warm-up does
  // not scale the rates of trials: what is found would be too large when it is over.
  optim::Hyper adjusted(const JobState& state, optim::Hyper hyper, double epoch) const;

 private:
  tune::Space space_now(const nlohmann::json& memory) const;
  std::unique_ptr<tune::TrialPolicy> make_policy(const nlohmann::json& memory) const;
  nlohmann::json first_settings(const nlohmann::json& memory) const;
  void begin_search(JobState& state, nlohmann::json& memory) const;
  void keep(JobState& state, const nlohmann::json& memory) const;
  void go_back(JobState& state, nlohmann::json& memory) const;
  void note(nlohmann::json& memory, const JobState& state, double loss) const;
  bool end_piece(JobState& state, nlohmann::json& memory, const Update& update) const;
  bool move_on(JobState& state, nlohmann::json& memory, tune::TrialPolicy& policy) const;
  void finish(JobState& state, nlohmann::json& memory, const tune::TrialPolicy& policy,
              int64_t winner, const std::string& why) const;
  bool watch(JobState& state, nlohmann::json& memory) const;
  double epochs_left() const;
  double most_epochs_of_a_search() const;
  double trials_of_a_search() const;  // of the shortest length

  spec::JobOptions job_;
  double train_size_;
  tune::Space space_;
  double clock_;  // in epochs
  std::function<double()> epoch_;
};

}  // namespace ductile::train
