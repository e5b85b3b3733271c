#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

// What a tuner inside a run (tune.online) did and cost, as the run's events tell it.
namespace ductile::run {

// NaN: not known, as in a run of a version that did not note it.
struct TrialCost {
  double samples = 0, wall_seconds = 0, core_seconds = 0;

  TrialCost& operator+=(const TrialCost& other);
};

// Samples are those of the state that the run has: of what a kill lost and what was then done
// again, one counts, as it does in the samples of the run. Time and CPU time are the run's: all
// that passed while a trial was under way, so also what was lost, and the start of the workers that
// did it again. Of a trial that is still under way counts what its last event tells.
struct TuningRecord {
  using Trial = std::pair<int, int64_t>;  // its search, from 1 on, and its number

  struct Entry {
    const nlohmann::json* event;  // of the kind "tune"
    int search;
  };
  std::vector<Entry> entries;  // of the state that the run has, in order of its steps
  std::map<Trial, TrialCost> costs;
  std::set<Trial> kept;  // whose work the run went on from

  // Steps, after the first and up to the second, of the other trials, and those that the run went
  // back from when it diverged: they are no part of the way to the state that the run has. Of a
  // search that is not over, the trial under way is. Ascending.
  std::vector<std::pair<double, double>> dropped;
  bool is_dropped(double step) const;
};

// `events` as History has them; they must outlive the result.
TuningRecord read_tuning(const std::vector<nlohmann::json>& events);

// For `--json` output: searches, trials, samples, samples_kept, wall_seconds and core_seconds; null
// where one is not known. And kept, the setting that the last search ended with, by name; null
// where there is none, or the run went back from it. Null as a whole for a run without trials.
nlohmann::json tuning_json(const std::vector<nlohmann::json>& events);

// Of all trials, and of those that were kept.
TrialCost cost_of_trials(const TuningRecord& record);
TrialCost cost_of_kept_trials(const TuningRecord& record);

}  // namespace ductile::run
