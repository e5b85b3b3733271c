#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "ductile/base/json_fields.h"
#include "ductile/tune/curve_model.h"
#include "ductile/tune/searchers_impl.h"
#include "ductile/tune/warp.h"

namespace ductile::tune {
namespace {

using Json = nlohmann::json;

constexpr size_t kCurvesStartup = 16;
constexpr size_t kCurvesCandidates = 300;  // without a list
constexpr size_t kMostListed = 2000;       // of a list, for one decision
constexpr size_t kMostFitValues = 80;      // that the scales are fitted to
constexpr double kFitGrowth = 1.5;         // of the values between two fits
// Of the budget, for first looks at new settings: the less where a look says little of the end.
constexpr double kLeastNewShare = 0.3, kMostNewShare = 0.6;
// The share of the ends' variance that a first look explains, where the least and most of it go.
constexpr double kLittleExplained = 0.55, kMuchExplained = 0.7;
constexpr double kRandomShare = 0.2;   // of the new settings: what the model cannot know yet
constexpr double kNewDeviation = 0.7;  // how much of its doubt speaks for a new setting

// Two decisions. How much of the budget goes to new settings follows only from what first looks say
// of the end: the rest would be spent on trials that are soon known to be mediocre, or on ever more
// new ones, if the two competed by expected improvement (docs/design/015-tune.md). Among new
// settings, and among paused trials, the expected improvement at the full budget decides, or at
// the largest one that the rest (ForecastingSearcher::Rest) lets a trial reach.
class CurvesSearcher final : public ForecastingSearcher {
 public:
  CurvesSearcher(std::string_view name, const Space& space, const SearcherOptions& options)
      : ForecastingSearcher(name, space, options),
        scales_(usual_curve_scales(this->space().num_features())),
        model_(scales_),
        of_listed_(this->space().listed().size()) {}

 private:
  struct Used {
    int64_t trial;
    size_t index;  // in Trial::seen
  };

  Pick pick(Rng& rng, std::span<const int64_t> paused) override {
    catch_up();
    const size_t startup =
        options().startup > 0 ? static_cast<size_t>(options().startup) : kCurvesStartup;
    const bool is_due = trials().size() < startup || looked_ < new_share() * spent_;
    const bool is_new = paused.empty() || (is_due && rest().pays_for_new);
    if (is_new) {
      if (auto fresh = pick_new(rng, startup)) return {.fresh = std::move(fresh)};
      if (paused.empty()) return {};
    }
    const double goal = goal_of(rng);
    int64_t best = paused[0];
    double most = -std::numeric_limits<double>::infinity();
    for (const int64_t t : paused) {
      const Normal end = model_.forecast(of_trial(t));
      const double gain = log_expected_improvement(end.mean, std::sqrt(end.variance), goal);
      if (gain <= most) continue;
      most = gain;
      best = t;
    }
    return {.resumed = best};
  }

  std::optional<Candidate> pick_new(Rng& rng, size_t startup) {
    if (trials().size() < startup || model_.size() == 0 || rng.uniform(0, 1) < kRandomShare)
      return random_candidate(rng);
    const double goal = goal_of(rng), when = end_of(0);
    std::optional<Candidate> best;
    double most = -std::numeric_limits<double>::infinity();
    const auto compare = [&](CurveModel::Target& target, const Setting& setting, int64_t listed) {
      aim(target, kNoTrial, setting, when);
      const Normal end = model_.forecast(target);
      const double gain =
          log_expected_improvement(end.mean, kNewDeviation * std::sqrt(end.variance), goal);
      if (gain <= most && best) return;
      most = gain;
      best = Candidate{setting, listed};
    };
    if (!of_listed_.empty()) {
      const double left = static_cast<double>(of_listed_.size() - trials().size());
      const double share = static_cast<double>(kMostListed) / std::max(left, 1.0);
      for (size_t i = 0; i < of_listed_.size(); ++i) {
        if (is_taken(i) || (share < 1 && rng.uniform(0, 1) >= share)) continue;
        compare(of_listed_[i], space().listed()[i], static_cast<int64_t>(i));
      }
    } else {
      const size_t most_candidates =
          options().candidates > 0 ? static_cast<size_t>(options().candidates) : kCurvesCandidates;
      for (const Candidate& c : candidates(rng, most_candidates, best_settings())) {
        CurveModel::Target target;
        compare(target, c.setting, -1);
      }
    }
    return best ? best : random_candidate(rng);
  }

  // What must be beaten: a little less than the least value so far, by a random order of magnitude
  // (Rakotoarison et al., "In-context freeze-thaw Bayesian optimization", ICML 2024, section 4.2).
  double goal_of(Rng& rng) const { return least_ - std::pow(10.0, rng.uniform(-3, -0.3)); }

  std::vector<Setting> best_settings() const {
    std::vector<std::pair<double, int64_t>> order;
    for (size_t i = 0; i < trials().size(); ++i)
      if (!trials()[i].seen.empty()) order.push_back({trials()[i].best(), static_cast<int64_t>(i)});
    std::sort(order.begin(), order.end());
    std::vector<Setting> out;
    for (size_t i = 0; i < std::min<size_t>(5, order.size()); ++i)
      out.push_back(trials()[static_cast<size_t>(order[i].second)].setting);
    return out;
  }

  static constexpr int64_t kNoTrial = -1;

  // Where a trial that has come so far may end, as CurveModel::Place::when.
  double end_of(double budget) const {
    return std::log(std::min(1.0, (budget + rest().budget) / options().full_budget));
  }
  // Kept between two questions, unless it may end elsewhere now.
  void aim(CurveModel::Target& target, int64_t trial, const Setting& setting, double when) const {
    if (target.place.features.empty() || target.place.when != when)
      target = {{trial, space().features(setting), when}};
  }
  CurveModel::Place place_of(const Used& used) const {
    const Trial& trial = trials()[static_cast<size_t>(used.trial)];
    return {used.trial, space().features(trial.setting),
            std::log(trial.seen[used.index].budget / options().full_budget)};
  }
  CurveModel::Target& of_trial(int64_t t) {
    const Trial& trial = trials()[static_cast<size_t>(t)];
    CurveModel::Target& target = of_trial_[t];
    aim(target, t, trial.setting, end_of(trial.budget()));
    return target;
  }

  // Takes in the last value of every trial that has new ones: those in between would cost the
  // square of their number and say little more.
  void catch_up() {
    for (; read_ < told().size(); ++read_) {
      const Told& t = told()[read_];
      const Trial& trial = trials()[static_cast<size_t>(t.trial)];
      if (trial.budget() > t.seen.budget) continue;
      take({t.trial, trial.seen.size() - 1});
      if (used_.size() < next_fit_) append(used_.size() - 1);
    }
    if (used_.size() < next_fit_) return;
    fit();
    rebuild();
    next_fit_ = std::max(used_.size() + 1,
                         static_cast<size_t>(kFitGrowth * static_cast<double>(used_.size())));
  }

  // The model learns the best value so far: that is what a tuner keeps of a trial.
  void take(Used used) {
    const Trial& trial = trials()[static_cast<size_t>(used.trial)];
    double best = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i <= used.index; ++i)
      if (std::isfinite(trial.seen[i].value)) best = std::min(best, trial.seen[i].value);
    const bool is_lost = !std::isfinite(trial.seen[used.index].value);
    const double budget = trial.seen[used.index].budget;
    auto& before = reached_[used.trial];
    if (before == 0) looked_ += budget;
    spent_ += budget - before;
    before = budget;
    used_.push_back(used);
    values_.push_back(is_lost ? std::numeric_limits<double>::infinity() : best);
  }

  void append(size_t i) {
    const double value = warp_(values_[i]);
    model_.append(place_of(used_[i]), value);
    least_ = std::min(least_, value);
  }

  void fit() {
    warp_ = Warp(values_);
    fitted_ = used_.size();
    // Whole trials, spread over all of them.
    std::map<int64_t, std::vector<size_t>> by_trial;
    for (size_t i = 0; i < used_.size(); ++i) by_trial[used_[i].trial].push_back(i);
    const size_t every = (used_.size() + kMostFitValues - 1) / kMostFitValues;
    std::vector<CurveModel::Place> places;
    std::vector<double> values;
    size_t nth = 0;
    for (const auto& [trial, list] : by_trial) {
      if (nth++ % every != 0) continue;
      for (const size_t i : list) {
        places.push_back(place_of(used_[i]));
        values.push_back(warp_(values_[i]));
      }
    }
    scales_ = fit_curve_scales(places, values, options().ard, scales_);
  }

  // How much of the budget goes to first looks.
  double new_share() const {
    if (reached_.empty()) return kMostNewShare;
    const double look = looked_ / static_cast<double>(reached_.size());  // the mean first one
    const double explained = explained_share(scales_, std::log(look / options().full_budget));
    const double much = (explained - kLittleExplained) / (kMuchExplained - kLittleExplained);
    return std::lerp(kLeastNewShare, kMostNewShare, std::clamp(much, 0.0, 1.0));
  }

  void rebuild() {
    model_ = CurveModel(scales_);
    least_ = std::numeric_limits<double>::infinity();
    of_trial_.clear();
    of_listed_.assign(of_listed_.size(), {});
    for (size_t i = 0; i < used_.size(); ++i) append(i);
  }

  // The rest follows from these.
  Json save_model() const override {
    Json used = Json::array();
    for (const Used& u : used_) used.push_back({u.trial, u.index});
    return {{"used", std::move(used)},
            {"read", read_},
            {"fitted", fitted_},
            {"next_fit", next_fit_},
            {"scales", to_json(scales_)}};
  }

  void restore_model(const Json& model) override {
    const JsonFields fields(model, "saved model");
    const CurveScales scales = curve_scales_from_json(fields.at("scales"), space().num_features());
    std::vector<Used> used;
    std::map<int64_t, size_t> last;
    for (const Json& u : fields.array("used")) {
      if (!u.is_array() || u.size() != 2) fields.wrong("used", "a list of pairs", u);
      const int64_t t =
          fields.as_integer(u[0], "used", 0, static_cast<int64_t>(trials().size()) - 1);
      const auto most = static_cast<int64_t>(trials()[static_cast<size_t>(t)].seen.size()) - 1;
      const auto index = static_cast<size_t>(fields.as_integer(u[1], "used", 0, most));
      const auto [before, is_first] = last.try_emplace(t, index);
      if (!is_first && before->second >= index)
        fail(ErrorCode::data_loss, "saved model: the values of trial {} are not in order", t);
      before->second = index;
      used.push_back({t, index});
    }
    const auto most_used = static_cast<int64_t>(used.size());
    const int64_t fitted = fields.integer("fitted", 0, most_used);
    const int64_t next_fit =
        fields.integer("next_fit", most_used + (fitted > 0 ? 1 : 0), INT64_MAX);
    const int64_t read = fields.integer("read", 0, static_cast<int64_t>(told().size()));
    used_.clear();
    values_.clear();
    reached_.clear();
    looked_ = spent_ = 0;
    warp_ = {};
    for (const Used& u : used) {
      take(u);
      if (used_.size() == static_cast<size_t>(fitted)) warp_ = Warp(values_);
    }
    scales_ = scales;
    fitted_ = static_cast<size_t>(fitted);
    next_fit_ = static_cast<size_t>(next_fit);
    read_ = static_cast<size_t>(read);
    rebuild();
  }

  CurveScales scales_;
  CurveModel model_;
  Warp warp_;
  std::vector<Used> used_;
  std::vector<double> values_;         // of each of them
  std::map<int64_t, double> reached_;  // budget of each trial in them
  double looked_ = 0, spent_ = 0;      // budget of first looks, and of everything
  double least_ = std::numeric_limits<double>::infinity();
  size_t read_ = 0;                   // tells
  size_t fitted_ = 0, next_fit_ = 6;  // values at the last fit, and at the next one
  std::map<int64_t, CurveModel::Target> of_trial_;
  std::vector<CurveModel::Target> of_listed_;
};

}  // namespace

std::unique_ptr<Searcher> make_curves(const Space& space, const SearcherOptions& options) {
  return std::make_unique<CurvesSearcher>("curves", space, options);
}

}  // namespace ductile::tune
