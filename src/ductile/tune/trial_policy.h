#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/base/table.h"
#include "ductile/tune/searcher.h"

// Which trial gets more budget next. A trial policy is a pure state machine around a searcher: it
// says what to run, and is told what came of it. Whoever runs the trials decides where and how.
namespace ductile::tune {

enum class MoveKind {
  start,   // a new trial: run it from nothing (or from `parent`) to `budget`
  resume,  // run a paused trial on to `budget`
  drop,    // this trial will not be resumed: what was kept of it may go
  wait,    // nothing to start before another result is told
  stop,    // the search is over
};
std::string_view to_string(MoveKind kind);

struct Move {
  MoveKind kind = MoveKind::stop;
  int64_t trial = -1;
  double budget = 0;
  int64_t parent = -1;  // start: the trial whose state it takes over; -1: it begins from nothing
  std::string reason = {};
};

// What came of a start or resume.
struct Result {
  int64_t trial = -1;
  std::vector<Observation> seen = {};  // since the last result, in order; the last at the budget
  bool ended = false;  // the trial cannot go on for another reason than that it diverged
  // It could not even begin with its setting, and has no values: it takes nothing of the budget,
  // and the searcher learns of it as of one that diverged at once.
  bool refused = false;
};

// Of a unit: sums of budgets such as 0.1 are rounded, and none is lost for that.
inline constexpr double kRounding = 1e-9;

// The first look at a trial, as a share of its full budget: what is seen before says little of how
// it ends (docs/design/015-tune.md).
inline constexpr double kFirstLook = 0.06;

// Options of one policy alone have its name before them, as in job files.
struct PolicyOptions {
  double full_budget = 1;   // of a trial that is run to its end
  double least_budget = 1;  // of a trial's first run, where the policy begins with short ones
  double unit = 1;          // budgets are multiples of it
  double total_budget = std::numeric_limits<double>::infinity();  // of all trials together

  struct Full {
    bool whole_only = false;
  } full;
  struct Halving {
    double eta = 3;
    int64_t settings = 0;
  } halving;
  struct OneEpoch {
    double screened = 0.5;
    int64_t settings = 0;
    int64_t keep = 0;
  } one_epoch;
  struct MlTuner {
    double trial_bound = 0;
    int64_t patience = 4;
    int64_t retunings = 1000;
    int64_t side_by_side = 1;
    double search_share = 1;
    bool forks = true;
  } mltuner;
  struct FreezeThaw {
    double growth = 1.5;
    bool finish_best = false;
  } freeze_thaw;
};
void describe(Describer& d, PolicyOptions& o);

// One thread uses it at a time. As with searchers, everything is a function of the options and the
// calls so far. The budgets of all moves together are never above the total budget, but for
// rounding.
class TrialPolicy {
 public:
  TrialPolicy(std::string_view name, std::unique_ptr<Searcher> searcher,
              const PolicyOptions& options);

  virtual ~TrialPolicy() = default;

  // May be called again before the last move's result is told: for trials that run side by side.
  Move next();
  // Throws conflict for a trial that does not run, invalid_argument for budgets that are not in
  // order or are beyond what was asked for, or that end before it although the trial neither
  // diverged nor ended.
  void tell(const Result& result);

  // False once what is left is to train the best trial on.
  virtual bool is_searching() const { return true; }
  // Whether there is no other move until the trial of the last one is told.
  virtual bool runs_one() const { return false; }
  // The trial to go on with if the search ends here, of those that were not dropped; -1 for none.
  virtual int64_t kept() const;

  const Searcher& searcher() const { return *searcher_; }
  std::string_view name() const { return name_; }
  double spent() const { return spent_; }  // budget of the moves so far, those that run included
  // The trial with the least value; -1 before the first.
  int64_t best() const;

  nlohmann::json save() const;
  // As Searcher::restore(), for the policy and its searcher.
  void restore(const nlohmann::json& saved);

 protected:
  enum class Status { paused, running, finished, diverged, dropped };

  // The next move; only asked while at least one unit of the total budget is left.
  virtual Move decide() = 0;
  virtual void learn(const Result& result) { static_cast<void>(result); }
  virtual nlohmann::json save_state() const { return nullptr; }
  virtual void restore_state(const nlohmann::json& state) { static_cast<void>(state); }

  // A start of a new trial; a stop where the searcher has none, a wait if others still run.
  Move start(double budget, std::string reason);
  Move resume(int64_t trial, double budget, std::string reason) const;
  Move run_new_or_old(int64_t trial, double budget, std::string reason) const;
  Move wait_or_stop(std::string reason) const;
  void drop(int64_t trial);  // reported before the next move; nothing where it is no longer paused

  const PolicyOptions& options() const { return options_; }
  Searcher& own_searcher() { return *searcher_; }
  const std::vector<Trial>& trials() const { return searcher_->trials(); }
  Status status(int64_t trial) const { return states_[static_cast<size_t>(trial)].status; }
  int64_t num_running() const { return num_running_; }
  double left() const { return options_.total_budget - spent_; }
  double units_left() const;  // whole ones
  // A whole number of units, at least one, at most the full budget.
  double rounded(double budget) const;
  // Trials by their least value up to a budget, the best first; those that diverged last.
  std::vector<int64_t> ranked(std::vector<int64_t> of,
                              double up_to = std::numeric_limits<double>::infinity()) const;

 private:
  Move committed(Move move);

  struct State {
    Status status = Status::paused;
    double planned = 0;  // the budget up to which it has been asked to run
  };

  std::string_view name_;
  std::unique_ptr<Searcher> searcher_;
  PolicyOptions options_;
  double spent_ = 0;
  int64_t num_running_ = 0;
  std::vector<State> states_;
  std::deque<int64_t> drops_;
  std::optional<Move> held_;  // decided, and given after the drops, which make room for it
};

struct PolicyEntry {
  std::string_view name;
  std::unique_ptr<TrialPolicy> (*make)(std::unique_ptr<Searcher> searcher,
                                       const PolicyOptions& options);
  std::string_view help;
  bool uses_total;               // what it does depends on the total budget, not only where it ends
  bool needs_forecasts = false;  // it takes only searchers that forecast
};
Table<PolicyEntry> trial_policies();
// Throws invalid_argument for options that contradict each other, or a searcher that the policy
// cannot use.
std::unique_ptr<TrialPolicy> make_trial_policy(std::string_view name,
                                               std::unique_ptr<Searcher> searcher,
                                               const PolicyOptions& options);

}  // namespace ductile::tune
