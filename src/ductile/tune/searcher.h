#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/base/rng.h"
#include "ductile/base/table.h"
#include "ductile/tune/space.h"

// The seam of the searchers: ask for a setting, tell what came of it. Whoever runs the trials (a
// replay, a command, a tuner inside a run) drives the same code, usually through a TrialPolicy.
namespace ductile::tune {

// What a trial has reached after a budget. Budgets are in any one unit (epochs, steps, seconds) and
// count from the trial's beginning.
struct Observation {
  double budget = 0;
  double value = 0;  // lower is better; NaN or infinite: the trial has diverged
};

struct Trial {
  Setting setting;
  int64_t listed = -1;  // its place in Space::listed(), where the space has a list
  std::vector<Observation> seen = {};
  bool diverged = false;

  double budget() const { return seen.empty() ? 0 : seen.back().budget; }
  // The least value so far, or of those up to a budget; infinite before the first.
  double best(double up_to = std::numeric_limits<double>::infinity()) const;
};

struct SearcherOptions {
  int64_t seed = 0;
  double full_budget = 1;  // of a trial that is run to its end; forecasts aim at it
  int64_t startup = 0;     // random settings before a model is asked; 0: the searcher's own number
  int64_t candidates = 0;  // settings that a model compares for one ask; 0: its own number
  int64_t levels = 3;      // grid: values of each real dimension
  bool ard = true;         // gp, curves: a length scale for each dimension, or one for all
  // Not an option of users: what is asked for before anything else, in this order. Each lies in the
  // space, which has no list.
  std::vector<Setting> first = {};
  // Neither is this: how many trials it will be asked for, where that is known; 0: it is not.
  int64_t asks = 0;
};
void describe(Describer& d, SearcherOptions& o);

// One thread uses a searcher at a time. Everything that it does is a function of the space, the
// options and the calls so far, so a restored one goes on as the saved one would have, to the bit.
class Searcher {
 public:
  Searcher(std::string_view name, Space space, const SearcherOptions& options);
  virtual ~Searcher() = default;

  // Makes a trial and returns its number, which counts from 0. Nothing where every setting of the
  // space has been asked for, or the grid is at its end. A setting is not asked for twice where the
  // space is finite.
  std::optional<int64_t> ask();
  // The trial that is worth the next piece of budget: one of `paused`, or a new one. Searchers that
  // do not forecast always take a new one.
  std::optional<int64_t> ask_or_resume(std::span<const int64_t> paused);
  virtual bool forecasts() const { return false; }

  // Throws not_found for a trial that was never asked for, conflict for a budget that is not above
  // the trial's last one or a trial that has diverged, invalid_argument for a budget that is not
  // finite or not above 0.
  void tell(int64_t trial, Observation observation);

  const std::vector<Trial>& trials() const { return trials_; }
  const Space& space() const { return space_; }
  std::string_view name() const { return name_; }

  nlohmann::json save() const;
  // Takes over what save() gave. It must have come from a searcher of the same name, over the same
  // space, with the same options: else, and for anything damaged, throws data_loss and is as
  // before.
  void restore(const nlohmann::json& saved);

 protected:
  struct Candidate {
    Setting setting;
    int64_t listed = -1;
  };
  // One decision: the number of a paused trial, or a setting for a new one, or nothing at all.
  struct Pick {
    int64_t resumed = -1;
    std::optional<Candidate> fresh = {};
  };
  // `paused` is empty for ask(). `rng` is that of this decision alone.
  virtual Pick pick(Rng& rng, std::span<const int64_t> paused) = 0;
  // After every tell().
  virtual void learn(int64_t trial) { static_cast<void>(trial); }
  // What a model keeps beyond trials and the order of the tells. restore_model() is called when all
  // else is restored, learn() not having been called.
  virtual nlohmann::json save_model() const { return nullptr; }
  virtual void restore_model(const nlohmann::json& model) { static_cast<void>(model); }

  // Settings that a model may choose from: all that are listed and not tried, or a random part of
  // them with `most`; without a list random ones, a half of them near the settings `around`.
  std::vector<Candidate> candidates(Rng& rng, size_t most, std::span<const Setting> around) const;
  // A uniform one that has not been tried; nothing where there is none.
  std::optional<Candidate> random_candidate(Rng& rng) const;
  bool is_taken(size_t listed) const { return taken_[listed]; }
  // The numbers and budgets of the tells, in their order.
  struct Told {
    int64_t trial;
    Observation seen;
  };
  const std::vector<Told>& told() const { return told_; }
  const SearcherOptions& options() const { return options_; }
  // Random settings before a model is asked: `own`, but a third of all that are to come at most.
  size_t startup(size_t own) const;

 private:
  std::optional<int64_t> decide(std::span<const int64_t> paused);
  void record(int64_t trial, Observation observation);
  bool is_exhausted() const;
  bool was_tried(const Setting& setting) const;

  std::string_view name_;
  Space space_;
  SearcherOptions options_;
  int64_t decisions_ = 0;
  std::vector<Trial> trials_;
  std::vector<Told> told_;
  std::vector<bool> taken_;          // of the listed settings
  std::vector<int64_t> by_setting_;  // trials in the order of their settings
};

struct SearcherEntry {
  std::string_view name;
  std::unique_ptr<Searcher> (*make)(const Space& space, const SearcherOptions& options);
  std::string_view help;
  bool forecasts = false;  // what the made one says
};
Table<SearcherEntry> searchers();
std::unique_ptr<Searcher> make_searcher(std::string_view name, const Space& space,
                                        const SearcherOptions& options = {});

}  // namespace ductile::tune
