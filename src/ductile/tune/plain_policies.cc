#include <algorithm>
#include <cmath>
#include <limits>

#include "ductile/base/json_fields.h"
#include "ductile/tune/searchers_impl.h"
#include "ductile/tune/trial_policies_impl.h"

namespace ductile::tune {
namespace {

using Json = nlohmann::json;

class FullPolicy final : public TrialPolicy {
 public:
  using TrialPolicy::TrialPolicy;

 private:
  Move decide() override {
    const double whole = options().full_budget - kRounding * options().unit;
    if (options().full.whole_only && options().total_budget >= whole && left() < whole)
      return wait_or_stop("what is left of the total budget does not pay for a whole trial");
    return start(options().full_budget, "every trial is run to its end");
  }
};

// "Is one epoch all you need for multi-fidelity hyperparameter optimization?" (arXiv 2307.15422):
// all settings for one epoch, then the best K to the end. What is left of the total budget after
// them goes to the next best, then to new trials.
class OneEpochPolicy final : public TrialPolicy {
 public:
  OneEpochPolicy(std::string_view name, std::unique_ptr<Searcher> searcher,
                 const PolicyOptions& options)
      : TrialPolicy(name, std::move(searcher), options) {
    const auto& o = options.one_epoch;
    if (o.settings == 0 && !std::isfinite(options.total_budget))
      fail(ErrorCode::invalid_argument,
           "one_epoch: without a total_budget, one_epoch.settings must say how many short runs "
           "there are");
    short_runs_ = o.settings > 0 ? o.settings
                                 : std::max<int64_t>(
                                       1, static_cast<int64_t>(o.screened * options.total_budget /
                                                                   rounded(options.least_budget) +
                                                               kRounding));
  }

 private:
  Move decide() override {
    if (!screened_ && static_cast<int64_t>(trials().size()) - refused_ < short_runs_) {
      Move move = start(options().least_budget, "all settings get one short run");
      if (move.kind == MoveKind::start) return move;
    }
    if (!screened_) {
      if (num_running() > 0) return wait_or_stop("the short runs are not over");
      screened_ = true;
    }
    int64_t taken = 0;
    std::vector<int64_t> paused;
    for (int64_t t = 0; t < static_cast<int64_t>(trials().size()); ++t) {
      if (status(t) == Status::paused) paused.push_back(t);
      taken += chosen_.size() > static_cast<size_t>(t) && chosen_[static_cast<size_t>(t)];
    }
    const int64_t keep = options().one_epoch.keep > 0            ? options().one_epoch.keep
                         : std::isfinite(options().total_budget) ? INT64_MAX
                                                                 : 1;
    if (taken >= keep) {
      for (const int64_t t : paused) drop(t);
      return wait_or_stop("the best have been run to their end");
    }
    if (paused.empty())
      return start(options().full_budget, "no short run is left, so a new trial is run to its end");
    const int64_t best = ranked(paused)[0];
    chosen_.resize(trials().size());
    chosen_[static_cast<size_t>(best)] = true;
    return resume(best, options().full_budget,
                  "it is the best of the short runs that were not run to their end");
  }

  void learn(const Result& result) override { refused_ += result.refused; }

  Json save_state() const override {
    return {{"screened", screened_}, {"chosen", chosen_}, {"refused", refused_}};
  }
  void restore_state(const Json& state) override {
    const JsonFields fields(state, "saved state");
    std::vector<bool> chosen;
    for (const Json& c : fields.array("chosen")) {
      if (!c.is_boolean()) fields.wrong("chosen", "a list of true and false", c);
      chosen.push_back(c.get<bool>());
    }
    const int64_t most = static_cast<int64_t>(trials().size());
    refused_ = fields.integer_or("refused", 0, 0, most);  // earlier versions did not count
    screened_ = fields.boolean("screened");
    chosen_ = std::move(chosen);
  }

  int64_t short_runs_;
  int64_t refused_ = 0;  // trials that had no short run
  bool screened_ = false;
  std::vector<bool> chosen_;  // trials that were run on
};

// Freeze-thaw (Swersky, Snoek and Adams, arXiv 1406.3896): every trial is paused at budgets that
// grow by a factor, and the searcher's forecasts choose among all that are paused and a new one.
class FreezeThawPolicy final : public TrialPolicy {
 public:
  FreezeThawPolicy(std::string_view name, std::unique_ptr<Searcher> searcher,
                   const PolicyOptions& options)
      : TrialPolicy(name, std::move(searcher), options),
        forecasting_(dynamic_cast<ForecastingSearcher*>(&own_searcher())) {
    if (forecasting_ != nullptr) return;
    fail(ErrorCode::invalid_argument,
         "freeze_thaw: the searcher \"{}\" does not forecast curves; take \"curves\"",
         this->searcher().name());
  }

 private:
  Move decide() override {
    std::vector<int64_t> paused;
    for (int64_t t = 0; t < static_cast<int64_t>(trials().size()); ++t)
      if (status(t) == Status::paused) paused.push_back(t);
    const bool pays_for_new = left() >= enough_for_new() - kRounding * options().unit;
    // Those that run may be worth what is left once they pause. Where no trial is left to go on
    // with, a new one is: nothing else can be had for the rest.
    if (paused.empty() && !pays_for_new && num_running() > 0)
      return wait_or_stop("what is left of the total budget is kept for the trials that run");
    const double reach =
        options().freeze_thaw.finish_best ? std::numeric_limits<double>::infinity() : left();
    forecasting_->set_rest({reach, pays_for_new});
    const std::optional<int64_t> trial = own_searcher().ask_or_resume(paused);
    if (!trial) return wait_or_stop("every setting of the space has been run to its end");
    const double from = trials()[static_cast<size_t>(*trial)].budget();
    const double next = from == 0
                            ? first_look()
                            : std::max(from * options().freeze_thaw.growth, from + options().unit);
    return run_new_or_old(*trial, next,
                          from == 0 ? "a new setting is forecast to be worth the most"
                                    : "going on with it is forecast to be worth the most");
  }

  double first_look() const {
    return std::max(options().least_budget, kFirstLook * options().full_budget);
  }
  // What must be left for a new trial. If the best one is run to its end afterwards, a look may
  // find it. Else the search has to pay for that end, without which a look is worth nothing; where
  // the total is less than two runs, half of it still goes to looks.
  double enough_for_new() const {
    return options().freeze_thaw.finish_best
               ? rounded(first_look())
               : std::min(options().full_budget, options().total_budget / 2);
  }

  ForecastingSearcher* const forecasting_;
};

}  // namespace

MadePolicy make_full(std::unique_ptr<Searcher> searcher, const PolicyOptions& options) {
  return std::make_unique<FullPolicy>("full", std::move(searcher), options);
}

MadePolicy make_one_epoch(std::unique_ptr<Searcher> searcher, const PolicyOptions& options) {
  return std::make_unique<OneEpochPolicy>("one_epoch", std::move(searcher), options);
}

MadePolicy make_freeze_thaw(std::unique_ptr<Searcher> searcher, const PolicyOptions& options) {
  return std::make_unique<FreezeThawPolicy>("freeze_thaw", std::move(searcher), options);
}

}  // namespace ductile::tune
