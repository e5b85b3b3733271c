#include "ductile/tune/searcher.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/text.h"
#include "ductile/tune/searchers_impl.h"

namespace ductile::tune {
namespace {

using Json = nlohmann::json;

constexpr SearcherEntry kSearchers[] = {
    {"random", make_random, "uniform draws"},
    {"grid", make_grid, "a grid over the whole space, in an order that spreads from the beginning"},
    {"tpe", make_tpe, "tree-structured Parzen estimator: densities of good and of other settings"},
    {"gp", make_gp, "Gaussian process over settings, expected improvement"},
    {"curves", make_curves,
     "Gaussian process over settings and budgets, which forecasts learning curves", true},
};

constexpr uint64_t kDecisions = 0x74756e65;  // the stream of a searcher's draws
constexpr int kTries = 64;                   // draws for one that was not tried

}  // namespace

void describe(Describer& d, SearcherOptions& o) {
  d.field("seed", o.seed, "seed of all draws").at_least(0);
  d.field("full_budget", o.full_budget, "budget of a trial that is run to its end").above(0);
  d.field("startup", o.startup,
          "random settings before a model is asked; 0: the searcher's own number")
      .range(0, 1e6);
  d.field("candidates", o.candidates,
          "settings that a model compares for one ask; 0: the searcher's own number")
      .range(0, 1e6);
  d.field("levels", o.levels, "grid: values of each real dimension").range(1, 1e6);
  d.field("ard", o.ard, "gp, curves: a length scale for each dimension, not one for all");
}

double Trial::best(double up_to) const {
  double best = std::numeric_limits<double>::infinity();
  for (const Observation& o : seen)
    if (o.budget <= up_to && std::isfinite(o.value)) best = std::min(best, o.value);
  return best;
}

Searcher::Searcher(std::string_view name, Space space, const SearcherOptions& options)
    : name_(name), space_(std::move(space)), options_(options) {
  taken_.assign(space_.listed().size(), false);
  DUCTILE_CHECK(options_.first.empty() || taken_.empty(), "a list begins where it wants to");
  for (const Setting& setting : options_.first)
    DUCTILE_CHECK(space_.contains(setting), "a first setting is not in the space");
}

std::optional<int64_t> Searcher::ask() { return decide({}); }

std::optional<int64_t> Searcher::ask_or_resume(std::span<const int64_t> paused) {
  for (const int64_t trial : paused)
    DUCTILE_CHECK(trial >= 0 && trial < static_cast<int64_t>(trials_.size()), "trial {}", trial);
  return decide(paused);
}

std::optional<int64_t> Searcher::decide(std::span<const int64_t> paused) {
  if (paused.empty() && is_exhausted()) return std::nullopt;
  Rng rng(static_cast<uint64_t>(options_.seed), kDecisions, static_cast<uint64_t>(decisions_));
  Pick picked;
  if (trials_.size() < options_.first.size()) {
    picked.fresh = Candidate{options_.first[trials_.size()]};
  } else {
    picked = pick(rng, paused);
  }
  if (picked.resumed < 0 && !picked.fresh) return std::nullopt;
  ++decisions_;
  if (picked.resumed >= 0) return picked.resumed;
  const int64_t trial = static_cast<int64_t>(trials_.size());
  trials_.push_back({std::move(picked.fresh->setting), picked.fresh->listed});
  if (picked.fresh->listed >= 0) taken_[picked.fresh->listed] = true;
  const auto less = [&](int64_t a, int64_t b) { return trials_[a].setting < trials_[b].setting; };
  by_setting_.insert(std::lower_bound(by_setting_.begin(), by_setting_.end(), trial, less), trial);
  return trial;
}

void Searcher::tell(int64_t trial, Observation observation) {
  if (trial < 0 || trial >= static_cast<int64_t>(trials_.size()))
    fail(ErrorCode::not_found, "trial {} was never asked for; there are {}", trial, trials_.size());
  if (!std::isfinite(observation.budget) || !(observation.budget > 0))
    fail(ErrorCode::invalid_argument, "trial {}: budget {} must be finite and above 0", trial,
         observation.budget);
  const Trial& t = trials_[trial];
  if (t.diverged)
    fail(ErrorCode::conflict, "trial {} has diverged, so there is nothing more to tell of it",
         trial);
  if (observation.budget <= t.budget())
    fail(ErrorCode::conflict, "trial {}: budget {} is not above {}, which was told before", trial,
         observation.budget, t.budget());
  record(trial, observation);
  learn(trial);
}

void Searcher::record(int64_t trial, Observation observation) {
  Trial& t = trials_[trial];
  if (!std::isfinite(observation.value)) {
    observation.value = std::numeric_limits<double>::quiet_NaN();
    t.diverged = true;
  }
  t.seen.push_back(observation);
  told_.push_back({trial, observation});
}

size_t Searcher::startup(size_t own) const {
  if (options_.startup > 0) return static_cast<size_t>(options_.startup);
  if (options_.asks <= 0) return own;
  return std::min(own, static_cast<size_t>(std::max<int64_t>(2, options_.asks / 3)));
}

bool Searcher::was_tried(const Setting& setting) const {
  const auto found =
      std::lower_bound(by_setting_.begin(), by_setting_.end(), setting,
                       [&](int64_t trial, const Setting& s) { return trials_[trial].setting < s; });
  return found != by_setting_.end() && trials_[*found].setting == setting;
}

bool Searcher::is_exhausted() const {
  if (!taken_.empty()) return trials_.size() == taken_.size();
  const int64_t count = space_.count();
  return count > 0 && static_cast<int64_t>(trials_.size()) >= count;
}

std::optional<Searcher::Candidate> Searcher::random_candidate(Rng& rng) const {
  if (is_exhausted()) return std::nullopt;
  if (!taken_.empty()) {
    size_t left = taken_.size() - trials_.size(), nth = rng.below(static_cast<uint32_t>(left));
    for (size_t i = 0; i < taken_.size(); ++i)
      if (!taken_[i] && nth-- == 0) return Candidate{space_.listed()[i], static_cast<int64_t>(i)};
  }
  Point point(space_.size());
  Setting setting;
  for (int tries = 0; tries < kTries; ++tries) {
    for (double& u : point) u = rng.uniform(0, 1);
    setting = space_.at(point);
    if (!was_tried(setting)) return Candidate{std::move(setting)};
  }
  // Nearly everything of a finite space was tried: the next one in the order of counting.
  for (int64_t i = 0, count = space_.count(); i < count; ++i) {
    int64_t rest = i;
    for (size_t d = 0; d < space_.size(); ++d) {
      const Dimension& dim = space_.dimensions()[d];
      const int64_t n = dim.kind == Kind::choice ? static_cast<int64_t>(dim.choices.size())
                                                 : static_cast<int64_t>(dim.high - dim.low) + 1;
      setting[d] = static_cast<double>(rest % n) + (dim.kind == Kind::choice ? 0 : dim.low);
      rest /= n;
    }
    if (!was_tried(setting)) return Candidate{std::move(setting)};
  }
  return Candidate{std::move(setting)};
}

std::vector<Searcher::Candidate> Searcher::candidates(Rng& rng, size_t most,
                                                      std::span<const Setting> around) const {
  std::vector<Candidate> out;
  if (!taken_.empty()) {
    for (size_t i = 0; i < taken_.size(); ++i)
      if (!taken_[i]) out.push_back({space_.listed()[i], static_cast<int64_t>(i)});
    for (size_t i = 0; i < std::min(most, out.size()); ++i)
      std::swap(out[i], out[i + rng.below(static_cast<uint32_t>(out.size() - i))]);
    if (out.size() > most) out.resize(most);
    return out;
  }
  if (is_exhausted()) return out;
  for (size_t i = 0; i < most; ++i) {
    if (around.empty() || i % 2 == 0) {
      if (auto candidate = random_candidate(rng)) out.push_back(std::move(*candidate));
      continue;
    }
    // Near a good setting: steps of every size, in about half of the dimensions.
    Point point = space_.to_point(around[(i / 2) % around.size()]);
    const double step = std::pow(10.0, rng.uniform(-2.5, -0.5));
    for (size_t d = 0; d < point.size(); ++d) {
      if (rng.next() & 1) continue;
      const Dimension& dim = space_.dimensions()[d];
      point[d] = dim.kind == Kind::choice ? (rng.uniform(0, 1) < 0.3 ? rng.uniform(0, 1) : point[d])
                                          : std::clamp(point[d] + step * rng.normal(), 0.0, 1.0);
    }
    Setting setting = space_.at(point);
    if (!was_tried(setting)) out.push_back({std::move(setting)});
  }
  return out;
}

Json Searcher::save() const {
  Json trials = Json::array(), told = Json::array();
  for (const Trial& t : trials_) {
    Json trial = {{"setting", t.setting}};
    if (t.listed >= 0) trial["listed"] = t.listed;
    trials.push_back(std::move(trial));
  }
  for (const Told& t : told_)
    told.push_back(
        {t.trial, t.seen.budget, std::isfinite(t.seen.value) ? Json(t.seen.value) : Json(nullptr)});
  return {{"searcher", name_},         {"seed", options_.seed},       {"decisions", decisions_},
          {"space", space_.to_json()}, {"trials", std::move(trials)}, {"told", std::move(told)},
          {"model", save_model()}};
}

void Searcher::restore(const Json& saved) {
  auto old = std::make_tuple(decisions_, trials_, told_, taken_, by_setting_);
  const Json old_model = save_model();
  try {
    const JsonFields fields(saved, "saved searcher");
    if (fields.text("searcher") != name_)
      fail(ErrorCode::data_loss, "it is of a searcher \"{}\", not \"{}\"",
           JsonFields::shorten(to_utf8(fields.text("searcher"))), name_);
    if (fields.integer("seed", 0, INT64_MAX) != options_.seed)
      fail(ErrorCode::data_loss, "its seed is another one");
    if (fields.at("space") != space_.to_json())
      fail(ErrorCode::data_loss, "its space is another one");
    decisions_ = fields.integer("decisions", 0, INT64_MAX);
    trials_.clear();
    told_.clear();
    by_setting_.clear();
    taken_.assign(taken_.size(), false);
    for (const Json& json : fields.array("trials")) {
      const JsonFields trial(json, "saved trial");
      Trial t;
      for (const Json& v : trial.array("setting"))
        t.setting.push_back(trial.as_number(v, "setting", -std::numeric_limits<double>::max(),
                                            std::numeric_limits<double>::max()));
      if (!space_.contains(t.setting)) fail(ErrorCode::data_loss, "a setting is not in the space");
      if (!taken_.empty()) {
        t.listed = trial.integer("listed", 0, static_cast<int64_t>(taken_.size()) - 1);
        if (taken_[t.listed]) fail(ErrorCode::data_loss, "a listed setting is there twice");
        taken_[t.listed] = true;
      }
      trials_.push_back(std::move(t));
    }
    for (size_t i = 0; i < trials_.size(); ++i) by_setting_.push_back(static_cast<int64_t>(i));
    std::stable_sort(by_setting_.begin(), by_setting_.end(),
                     [&](int64_t a, int64_t b) { return trials_[a].setting < trials_[b].setting; });
    for (const Json& json : fields.array("told")) {
      if (!json.is_array() || json.size() != 3) fields.wrong("told", "a list of three", json);
      const int64_t trial =
          fields.as_integer(json[0], "told", 0, static_cast<int64_t>(trials_.size()) - 1);
      const double last = trials_[trial].budget();
      const double budget =
          fields.as_number(json[1], "told", 0, std::numeric_limits<double>::max());
      if (budget <= last || trials_[trial].diverged)
        fail(ErrorCode::data_loss, "budgets of trial {} are not in order", trial);
      const double value =
          json[2].is_null() ? std::numeric_limits<double>::quiet_NaN()
                            : fields.as_number(json[2], "told", -std::numeric_limits<double>::max(),
                                               std::numeric_limits<double>::max());
      record(trial, {budget, value});
    }
    restore_model(fields.at("model"));
  } catch (const Error& e) {
    std::tie(decisions_, trials_, told_, taken_, by_setting_) = std::move(old);
    restore_model(old_model);
    throw Error(ErrorCode::data_loss,
                fmt::format("the saved searcher cannot be read: {}", e.what()));
  }
}

Table<SearcherEntry> searchers() { return {"searcher", kSearchers}; }

std::unique_ptr<Searcher> make_searcher(std::string_view name, const Space& space,
                                        const SearcherOptions& options) {
  return searchers().at(name).make(space, options);
}

}  // namespace ductile::tune
